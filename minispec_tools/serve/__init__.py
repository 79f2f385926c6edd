"""`minispec serve`: an engine behind HTTP, spoken to as OpenAI's API is.

schemas.py    what a body may ask for, and how an answer looks: no network
service.py    one request on its way, the engine's thread, and what Prometheus reads under vLLM's names
app.py        routes, limits and errors
process.py    a port, signals, and how it all ends

They need the packages of the extra "serve"; this file does not, so that `minispec --help` works without.
"""

from minispec.require import require_packages

PACKAGES = ("starlette", "uvicorn", "h11", "prometheus_client", "pydantic")


def require_extra() -> None:
    """Say what to install before an import fails half-way through."""
    require_packages("a server", "serve", *PACKAGES)
