"""How calls travel: routes, query strings and JSON bodies, written by clients and read by the server.

Both directions are here, and the embedded client sends its calls through both, so that a request that one way accepts
the other accepts as well. File names are bytes: a query parameter carries them percent-encoded; in the path lists of a
body a name that is not UTF-8 is written ``base64:…``.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, quote_from_bytes

import msgspec

from flux.api.client import Query
from flux.api.operations import Operation, parameters
from flux.api.queries import Query as QueryStruct
from flux.core import paths
from flux.core.errors import Code, FluxError
from flux.core.requests import Request

PATH_FIELDS = ("paths", "only")
QUERY_FIELDS_MAX = 64

_BASE64 = "base64:"
_UNKNOWN_FIELD = re.compile(r"unknown field `(?P<name>.*?)`", re.DOTALL)


def route(operation: Operation, values: Mapping[str, str]) -> str:
    """Return the operation's path with its parameters filled in and percent-encoded."""
    return fill(operation.path, values)


def fill(path: str, values: Mapping[str, str]) -> str:
    """Return a route with its parameters filled in."""
    for name in parameters(path):
        rest = f"{{{name}...}}"
        if rest in path:
            path = path.replace(rest, quote_from_bytes(paths.to_bytes(values[name].lstrip("/")), safe="/"))
        else:
            path = path.replace(f"{{{name}}}", quote_from_bytes(paths.to_bytes(values[name]), safe=""))
    return path


def encode_query(values: Query | None) -> str:
    """Return a query string without its question mark; parameters that are ``None`` are left out."""
    return "&".join(f"{name}={_quote(value)}" for name, value in _pairs(values or {}))


def _pairs(values: Query) -> Iterable[tuple[str, str]]:
    for name, value in values.items():
        if value is None:
            continue
        many = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        yield from ((name, str(item)) for item in many)


def _quote(value: str) -> str:
    return quote_from_bytes(paths.to_bytes(value), safe="/")


def decode_query(operation: Operation, raw: bytes) -> QueryStruct | None:
    """Return the query parameters that an operation was called with.

    Raises:
        FluxError: ``invalid``, naming the parameter, and the nearest one for an unknown name.
    """
    try:
        text = paths.from_bytes(raw)
        pairs = parse_qsl(text, keep_blank_values=True, errors="surrogateescape", max_num_fields=QUERY_FIELDS_MAX)
    except ValueError as error:
        raise FluxError(Code.INVALID, f"cannot read the query: more than {QUERY_FIELDS_MAX} parameters") from error
    if operation.query is None:
        if pairs:
            raise _unknown(pairs[0][0], ())
        return None
    return _convert(operation.query, _grouped(operation.query, pairs))


def _grouped(shape: type[QueryStruct], pairs: list[tuple[str, str]]) -> dict[str, Any]:
    lists = {field.name for field in msgspec.structs.fields(shape) if "list" in str(field.type)}
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in lists:
            result.setdefault(name, []).append(value)
        elif name in result:
            shown = paths.printable(name)[:80]
            raise FluxError(Code.INVALID, f"cannot read the query: {shown} is given twice", {"field": shown})
        else:
            result[name] = value
    return result


def _convert(shape: type[QueryStruct], values: dict[str, Any]) -> QueryStruct:
    try:
        return msgspec.convert(values, shape, strict=False)
    except msgspec.ValidationError as error:
        raise _refusal("query", error, shape) from None
    except UnicodeEncodeError:  # a number or a choice, spelled with bytes that are no text
        raise FluxError(Code.INVALID, "cannot read the query: a text in it is not UTF-8") from None


def require_one_reply(body: msgspec.Struct | None) -> None:
    """Refuse a request for a stream of events where one reply is expected.

    Raises:
        FluxError: ``invalid``.
    """
    if getattr(body, "stream", False):
        raise FluxError(Code.INVALID, "cannot stream a command's output into one reply: use a client's run for that")


def encode_body(body: msgspec.Struct | None) -> bytes:
    """Return a request as JSON.

    Raises:
        FluxError: ``invalid`` if a text that is not a list of paths is not UTF-8.
    """
    if body is None:
        return b""
    changes = {
        name: [_textual(path) for path in getattr(body, name)]
        for name in PATH_FIELDS
        if getattr(body, name, None) is not None
    }
    try:
        return msgspec.json.encode(msgspec.structs.replace(body, **changes) if changes else body)
    except UnicodeEncodeError:
        raise FluxError(
            Code.INVALID,
            "cannot send the request: a text in it is not UTF-8; write such bytes as escapes in a shell string",
        ) from None


def _textual(path: str) -> str:
    if paths.is_utf8(path):
        return path
    return _BASE64 + base64.b64encode(paths.to_bytes(path)).decode("ascii")


def decode_body(operation: Operation, raw: bytes) -> Request | None:
    """Return the request that an operation was called with; an empty body is an empty object.

    Raises:
        FluxError: ``invalid``, naming the field, and the nearest one for an unknown name.
    """
    shape = operation.request or Request
    try:
        body = msgspec.json.decode(raw or b"{}", type=shape)
    except msgspec.ValidationError as error:
        raise _refusal("request", error, shape) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise FluxError(Code.INVALID, f"cannot read the request: it is not valid JSON: {error}") from None
    for name in PATH_FIELDS:
        if getattr(body, name, None) is not None:
            setattr(body, name, [_exact(name, path) for path in getattr(body, name)])
    return body if operation.request else None


def _exact(field: str, path: str) -> str:
    if not path.startswith(_BASE64):
        return path
    try:
        return paths.from_bytes(base64.b64decode(path[len(_BASE64) :], validate=True))
    except binascii.Error:
        raise FluxError(
            Code.INVALID, f"cannot read the request: what follows base64: in `{field}` is not base64", {"field": field}
        ) from None


def _refusal(part: str, error: msgspec.ValidationError, shape: type[msgspec.Struct]) -> FluxError:
    unknown = _UNKNOWN_FIELD.search(str(error))
    if unknown:
        return _unknown(unknown["name"], _field_names(shape))
    field = str(error).rpartition("`$.")[2].rstrip("`") if "`$." in str(error) else None
    shown = paths.printable(str(error))
    return FluxError(Code.INVALID, f"cannot read the {part}: {shown}", {"field": field} if field else None)


def _unknown(name: str, known: Iterable[str]) -> FluxError:
    import difflib

    shown = paths.printable(name)[:80]
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    advice = f"did you mean `{nearest[0]}`?" if nearest else "leave it out"
    details = {"field": shown, "nearest": nearest[0] if nearest else None}
    return FluxError(Code.INVALID, f"cannot read the request: unknown field `{shown}`; {advice}", details)


def _field_names(shape: type[msgspec.Struct]) -> list[str]:
    """Return the names of the fields of a struct and of the structs directly in it."""
    names = list(shape.__struct_fields__)
    for field in msgspec.structs.fields(shape):
        for inner in getattr(field.type, "__args__", ()):
            names.extend(getattr(inner, "__struct_fields__", ()))
    return names


def encode_reply(view: Any) -> bytes:
    """Return a reply as JSON; bytes of a name that reached a text field are written as backslash escapes."""
    try:
        return msgspec.json.encode(view)
    except UnicodeEncodeError:
        return msgspec.json.encode(_printable(msgspec.to_builtins(view)))


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return paths.to_json(value)[0]
    if isinstance(value, dict):
        return {_printable(name): _printable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return value


def encode_error(error: FluxError) -> bytes:
    """Return the JSON of an error: ``{"code", "message", "details"}``."""
    shape = {"code": error.code.value, "message": error.message, "details": error.details}
    return encode_reply(msgspec.to_builtins(shape, enc_hook=str))


def decode_error(raw: bytes) -> FluxError | None:
    """Return the error that a reply tells, or nothing if the reply is not an error of Flux."""
    try:
        fields = msgspec.json.decode(raw)
        return FluxError(Code(fields["code"]), str(fields["message"]), fields["details"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return None
