"""
Recognises errors by which a provider says that it made nothing.

A create that began and is not in provider state is in doubt unless its error is such a refusal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from orchestrator.domain.record.record import Diagnostic

#: Never a refusal, whatever else the text says: the object may exist, or the answer was lost.
UNCLEAR = re.compile(
    r"already\s*exists|AlreadyExist|EntityExists|BucketAlreadyOwned|Duplicate|in use"
    r"|time[d]?[ -]?out|deadline exceeded|connection (reset|refused|closed)|broken pipe|\bEOF\b"
    r"|RequestError|request send failed|no such host|i/o timeout|unreachable"
    r"|did not respond|Request cancelled|operation canceled|inconsistent result|interrupted"
    # It was made, and what came after the create was refused.
    r"|\b(waiting|reading|describing|polling|refreshing)\b|\bafter creat",
    re.IGNORECASE,
)

#: The server did not say what became of the request, unless it says so elsewhere.
SERVER_ERROR = re.compile(
    r"\b5\d\d\b|Internal ?(Server ?)?Error|InternalFailure|Service ?Unavailable|Bad Gateway",
    re.IGNORECASE,
)

#: A request that was throttled was not carried out. Some providers answer so with status 503: then
#: it counts as that where the step's retries name the error.
THROTTLED = re.compile(
    r"\bRequestLimitExceeded\b|\bThrottling(Exception)?\b|\bThrottledException\b"
    r"|\bTooManyRequests(Exception)?\b"
)

#: The provider has it already: it was there before, or an earlier request of ours made it.
ALREADY_EXISTS = re.compile(
    r"already\s*exists|AlreadyExist|EntityExists|BucketAlreadyOwned|Duplicate|\bConflict\b.*exist",
    re.IGNORECASE,
)

#: Validation, permission and quota errors of the common providers and of HTTP APIs.
SHIPPED = (
    r"\bInvalid(Parameter|ParameterValue|ParameterCombination|Request|Input|Argument)\w*",
    r"\bInvalid[A-Z]\w*\.(NotFound|Malformed)\b",
    r"\bValidation(Error|Exception|Failed)\b",
    r"\bMalformed(PolicyDocument|QueryString|Input)\b",
    r"\bMissingParameter\b",
    r"\bAccess ?Denied(Exception)?\b",
    r"\bUnauthorizedOperation\b|\bUnauthorized\b|\bNotAuthorized\b",
    r"\bAuthorization(Failed|Error|_RequestDenied)\b|\bAuthFailure\b",
    r"\bPermission ?Denied\b|\bForbidden\b|\bPERMISSION_DENIED\b|\bINVALID_ARGUMENT\b",
    r"\bExpiredToken(Exception)?\b|\bInvalidClientTokenId\b|\bUnrecognizedClientException\b",
    r"\b\w*(Limit|Quota)Exceeded(Exception)?\b",
    r"\bQuota\w* exceeded\b|\bRESOURCE_EXHAUSTED\b.*quota",
    r"\bStatusCode: ?(400|401|403|422|429)\b|\bError (40[013]|429)\b",
)


class RefusalRules(Struct, frozen=True):
    """
    A step's own rules for which errors prove that the provider made nothing. Its author's
    ``refused_on`` overrides the shipped exceptions; ``retried_on`` does not: a create that may have
    made something is not retried.
    """

    refused_on: tuple[str, ...] = ()
    retried_on: tuple[str, ...] = ()


NO_RULES = RefusalRules()


def says_already_exists(diagnostics: Iterable[Diagnostic], address: str) -> bool:
    """
    Return whether the provider refused the create at an address because the object exists.
    """
    return any(
        item.address == address and ALREADY_EXISTS.search(f"{item.summary}\n{item.detail}")
        for item in diagnostics
    )


def is_refusal(diagnostics: Iterable[Diagnostic], rules: RefusalRules = NO_RULES) -> bool:
    """
    Return whether the diagnostics of one object prove that the provider made nothing.

    >>> is_refusal([Diagnostic(summary="creating: InvalidParameterValue: no such zone")])
    True
    >>> is_refusal([Diagnostic(summary="bucket already exists")])
    False
    """
    texts = [f"{d.summary}\n{d.detail}" for d in diagnostics if d.severity == "error"]
    return bool(texts) and all(_is_refused(text, rules) for text in texts)


def _is_refused(text: str, rules: RefusalRules) -> bool:
    if any(re.search(pattern, text) for pattern in rules.refused_on):
        return True
    if UNCLEAR.search(text):
        return False
    retried = any(re.search(pattern, text) for pattern in rules.retried_on)
    if SERVER_ERROR.search(text):
        return retried and THROTTLED.search(text) is not None
    patterns = (THROTTLED.pattern, *SHIPPED)
    return retried or any(re.search(pattern, text) for pattern in patterns)
