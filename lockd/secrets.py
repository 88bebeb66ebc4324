"""Secrets: which names and values are some, digests of them that tell nothing, and command lines with them masked.

Always holds: the key is 32 random bytes that only its owner can read; equal values give equal digests under one key,
and a digest names its key, so that digests of two machines are never taken for a difference unseen. Masking errs on
hiding.
Never: stores or shows the value of a secret, or makes a digest without a key.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable

from lockd.errors import LookError

MASK = "***"
KEY_SIZE = 32
_LONGEST = 1 << 16  # characters of an argument that are kept

# Patterns as text: `re` compiles and keeps them when they are first used, which most looks never do.
_WORD = r"(?:TOKEN|KEYS?|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|PWD|CREDENTIALS?|APIKEY|AUTH)"
_NAME = rf"(?i)(?:^|[_.\-]|API|ACCESS|AUTH|PRIVATE|SECRET){_WORD}(?:$|[_.\-]?(?:ID|[0-9]+)?$)|^AWS_"
_NOT_A_SECRET = frozenset({"PWD", "OLDPWD"})  # the working folder
_USERINFO = r"(?<=://)[^/\s@:]*:[^/\s@]+(?=@)|(?<=://)[^/\s@:]{20,}(?=@)"
_TOKENS = (
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[oprsu]_[A-Za-z0-9]{16,}|github_pat_\w{20,}|glpat-[\w-]{16,}|sk-[\w-]{16,}"
    r"|xox[abpr]-[\w-]{10,}|AKIA[A-Z0-9]{16}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
_BEARER = r"(?i)\b(authorization\s*[:=]\s*(?:\w+\s+)?|bearer\s+|basic\s+)[^\s'\"]{6,}"
_VALUE = r"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s'\",;&{}\[]+)"
_ASSIGNED = rf"(?<![\w.\-])(-{{0,2}})([A-Za-z][\w.\-]*)(=|\s+=\s+){_VALUE}"
_ENTRY = rf"(?<![\w.\-])()([A-Za-z][\w.\-]*)(['\"]\]?\s*[:=]\s*|:\s+){_VALUE}"  # of JSON, YAML, a Python dictionary
_WHOLE = r"(?s)([-+]{0,2})([A-Za-z][\w.\-/]*)=.+"
_OPTION = r"(?<!\S)(-{1,2})([A-Za-z][\w\-]*)(\s+)('[^']*'|\"[^\"]*\"|[^\s\-][^\s]*)"

_CODE = ("-c", "-lc", "-ic", "-e", "--eval", "--wrap")  # behind these stands a script, not a value

# -- which are secret


def token_like(name: str, value: str = "") -> bool:
    """Does the name of a variable or option, or its value, look like a secret?"""
    return (bool(re.search(_NAME, name)) and name not in _NOT_A_SECRET) or bool(
        re.search(_TOKENS, value) or re.search(_USERINFO, value)
    )


def mask(text: str) -> str:
    """A line with its secrets hidden: `--token=…`, `HF_TOKEN=…`, credentials in URLs, tokens by their known shapes."""
    text = re.sub(_BEARER, lambda match: match[1] + MASK, text)
    text = re.sub(_USERINFO, MASK, re.sub(_TOKENS, MASK, text))
    for pattern in (_ASSIGNED, _ENTRY, _OPTION):
        text = re.sub(pattern, _masked, text)
    return text


def mask_argv(argv: Iterable[str]) -> tuple[str, ...]:
    """A command line with its secrets hidden; the value of `--token VALUE` is an argument of its own."""
    masked: list[str] = []
    hide, before = False, ""
    for argument in argv:
        masked.append(MASK if hide else _mask_argument(argument, is_code=before in _CODE))
        before = argument
        hide = not hide and argument.startswith("-") and "=" not in argument and token_like(argument.lstrip("-"))
    return tuple(masked)


def _mask_argument(argument: str, *, is_code: bool) -> str:
    """One argument: `--token=…` is secret to its end, whatever blanks and quotes the value holds; a script is not."""
    whole = None if is_code else re.fullmatch(_WHOLE, argument)
    if whole is not None and token_like(whole[2]):
        return f"{whole[1]}{whole[2]}={MASK}"
    return mask(argument) if len(argument) <= _LONGEST else f"{mask(argument[:_LONGEST])}…"


def _masked(match: re.Match[str]) -> str:
    dashes, name, between, value = match.groups()
    return f"{dashes}{name}{between}{MASK if token_like(name) else value}"


# -- keyed digests


def digest(key: bytes, value: str) -> str:
    """`hmac-sha256:KEY:DIGEST`: a keyed digest of a secret. KEY (8 hex digits) tells which key made it."""
    import hmac

    made = hmac.new(key, os.fsencode(value), hashlib.sha256).hexdigest()
    return f"hmac-sha256:{key_id(key)}:{made}"


def key_id(key: bytes) -> str:
    """A short name of a key that does not tell the key."""
    return hashlib.sha256(b"lockd key id\0" + key).hexdigest()[:8]


def key(path: str, *, create: bool = True) -> bytes | None:
    """The key kept at `path`, made first if need be. None: it is not there and was not to be made.

    Raises LookError if it is not a file of 32 bytes that its owner alone, the user or root, can read.
    """
    try:
        return _read(path)
    except FileNotFoundError:
        if not create:
            return None
        _create(path)
        return _read(path)
    except OSError as error:
        raise LookError(
            f"the key for secrets cannot be read: {error.strerror}", where=path, hint="it belongs to the policy's owner"
        ) from None


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        wrong = _wrong(status)
        content = b"" if wrong else os.read(descriptor, KEY_SIZE + 1)
    finally:
        os.close(descriptor)
    if wrong or len(content) != KEY_SIZE:
        hint = "remove it to have a new one made; `lockd accept` then records the secrets anew"
        raise LookError(f"the key for secrets {wrong or 'is damaged'}", where=path, hint=hint)
    return content


def _wrong(status: os.stat_result) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if status.st_uid not in (0, os.geteuid()):
        return "belongs to somebody else"
    return "can be read or written by others" if status.st_mode & 0o077 else ""


def _create(path: str) -> None:
    """Write a new key aside and link it in: of two that do so at once, both then read the same one."""
    aside = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, os.urandom(KEY_SIZE))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.link(aside, path)
        except FileExistsError:
            pass
        finally:
            os.unlink(aside)
    except OSError as error:
        raise LookError(f"the key for secrets cannot be made: {error.strerror}", where=path) from None
