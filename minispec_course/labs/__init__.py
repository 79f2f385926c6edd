"""The experiments of single lessons: small measurements whose bookkeeping would hide the idea in a notebook."""
