"""`make site`: the course, its pages and its question bank as a web site that works from a folder, without a server.

    python -m minispec_course.site            builds site/ from the stored notebooks and docs; no kernel is started
    python -m minispec_course.site --fresh    the same, and computes every widget's pictures again

`stage` lays out what Sphinx reads, in build/site: notebooks, pages, questions.
`extension` is what we add to Sphinx: formulas as MathML, glossary terms, links to lines of the source. `widgets`
finds the widgets of a lesson and computes their pictures ahead, and static/widgets.js moves them.
"""
