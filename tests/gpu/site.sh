#!/bin/sh
# The server's packages, its client and llguidance, 9.9 MB of wheels for a machine that reaches no index (Python 3.12,
# x86-64):   sh tests/gpu/site.sh [FOLDER]
# and there: for wheel in FOLDER/*.whl; do python -m zipfile -e $wheel /tmp/site; done; export PYTHONPATH=.:/tmp/site
set -e
site=${1:-runs/site}
rm -rf "$site"
python -m pip download -q --no-deps --only-binary=:all: -c constraints.txt -d "$site" --python-version 3.12 \
    --platform manylinux_2_31_x86_64 --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 \
    starlette uvicorn h11 click prometheus_client pydantic pydantic_core annotated_types typing_inspection \
    typing_extensions anyio idna sniffio llguidance openai jiter httpx2 httpcore2 truststore
du -sh "$site"
