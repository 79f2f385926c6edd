"""Plain data, as it crosses between the grader and a student's process: JSON, on a socket.

Numbers, texts and lists go as they are; tuples, sets, dicts, bytes and arrays (dtype, shape, bytes) as marked objects;
{"remote": number} stands for an object that stays with the grader. There are no pickles. Both sides use this file, but
the grader believes nothing: it decodes bytes itself, and every type that comes out is exactly what it seems to be.
"""

import base64
import json
import math
import socket
from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch

# what a remote object can do
CALL, MODEL, NUMBER, TILES, DEVICE, LATER = "call", "model", "number", "tiles", "device", "later"
DTYPES = {
    name: getattr(torch, name) for name in "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64".split()
}
WHOLE = 2**63  # no honest answer has a greater whole number, and arithmetic with one could take for ever
MOST_DIMENSIONS = 16
MOST_LISTS = 2**23  # an empty array of shape (2**40, 0) has no bytes, but its tolist() would be 2**40 empty lists


class NoPlainData(ValueError):
    """A message that is not what it should be."""


def encode(value, remote=None):
    """A value as JSON. Subclasses go as what they are made of; `remote` says what to do with other objects."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int.__index__(value) if abs(int.__index__(value)) < WHOLE else {"object": "a very large number"}
    if isinstance(value, float) and not isinstance(value, np.generic):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (range, Iterator)):
        return [encode(x, remote) for x in islice(value, MOST_LISTS)]
    if isinstance(value, list):
        return [encode(x, remote) for x in list.__iter__(value)]
    if isinstance(value, tuple):
        return {"tuple": [encode(x, remote) for x in tuple.__iter__(value)]}
    if isinstance(value, (set, frozenset)):
        return {"set": [encode(x, remote) for x in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(k, remote), encode(v, remote)] for k, v in dict.items(value)]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, torch.Tensor):
        return _array(value, numpy=False) or _object(value)
    if isinstance(value, (np.ndarray, np.generic)):
        try:
            return _array(torch.from_numpy(np.array(value, order="C")), numpy=True) or _object(value)
        except TypeError:  # an array of objects
            return _object(value)
    return remote(value) if remote else _object(value)


def _array(tensor, numpy: bool):
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPES or tensor.layout != torch.strided:
        return None
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else None
    data = b"" if flat is None else flat.numpy().tobytes()
    return {"array": base64.b64encode(data).decode(), "dtype": dtype, "shape": list(tensor.shape), "numpy": numpy}


def _object(value):
    return {"object": type(value).__name__}


def decode(message, remote=None):
    """The value of a message. Every type is exactly what it says; what is malformed raises NoPlainData."""
    kind = type(message)
    if message is None or kind in (bool, float, str):
        return message
    if kind is int:
        if abs(message) >= WHOLE:
            raise NoPlainData("a whole number of more than 63 bits")
        return message
    if kind is list:
        return [decode(x, remote) for x in message]
    if kind is not dict:
        raise NoPlainData(f"{kind.__name__} in a message")
    try:
        if "array" in message:
            return _as_array(**message)
        [(name, content)] = message.items() if "kind" not in message else [("remote", message)]
        if name == "remote" and remote:
            return remote(content)
        if name == "object" and type(content) is str:
            return type(content[:60] if content.isidentifier() else "object", (), {})()
        if name == "bytes":
            return base64.b64decode(content, validate=True)
        if name in ("tuple", "set") and type(content) is list:
            return (tuple if name == "tuple" else set)(decode(x, remote) for x in content)
        if name == "dict" and type(content) is list:
            return {decode(k, remote): decode(v, remote) for k, v in content}
    except NoPlainData:
        raise
    except (TypeError, ValueError, LookupError, RuntimeError) as error:
        raise NoPlainData(f"{type(error).__name__} in a message") from None
    raise NoPlainData("an unknown object in a message")


def _as_array(array: str, dtype: str, shape: list, numpy: bool):
    if not all(type(n) is int and 0 <= n < WHOLE for n in shape) or len(shape) > MOST_DIMENSIONS:
        raise NoPlainData("a shape that is none")
    if math.prod(max(n, 1) for n in shape) > MOST_LISTS:
        raise NoPlainData("an array of an enormous shape")
    data, kind = base64.b64decode(array, validate=True), DTYPES[dtype]
    if len(data) != math.prod(shape) * kind.itemsize:
        raise NoPlainData("an array whose bytes do not fill its shape")
    if data:
        if dtype == "bool":  # a byte that is neither 0 nor 1 would be true twice
            data = bytes(map(bool, data))
        tensor = torch.frombuffer(bytearray(data), dtype=kind).reshape(shape)
    else:
        tensor = torch.zeros(shape, dtype=kind)
    return tensor.numpy()[()] if numpy else tensor  # without dimensions: numpy's own number


def send(channel: socket.socket, message) -> None:
    data = json.dumps(message, separators=(",", ":")).encode()
    channel.sendall(len(data).to_bytes(4, "big") + data)


def receive(channel: socket.socket, most: int = 2**32 - 1):
    """The next message; EOFError at the end. A message of more than `most` bytes is not read."""
    size = int.from_bytes(_exactly(channel, 4), "big")
    if size > most:
        raise NoPlainData(f"a message of {size} bytes")
    try:
        return json.loads(_exactly(channel, size))
    except (ValueError, RecursionError):
        raise NoPlainData("a message that is no JSON") from None


def _exactly(channel: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = channel.recv(min(size, 2**20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
