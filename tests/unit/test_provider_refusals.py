"""
Which provider errors prove that nothing was made.
"""

from __future__ import annotations

import pytest

from orchestrator.domain.record.record import Diagnostic
from orchestrator.domain.transitions.assessment import is_refusal

REFUSED = [
    "creating EC2 Instance: operation error EC2: RunInstances, api error "
    "InvalidParameterValue: Invalid availability zone",
    "api error UnauthorizedOperation: You are not authorized to perform this operation",
    "AccessDenied: User is not authorized to perform s3:CreateBucket",
    "api error VcpuLimitExceeded: You have requested more vCPU capacity",
    "googleapi: Error 403: Permission denied",
    "ValidationException: 1 validation error detected",
    "StatusCode: 403, authorization failed",
    "MalformedPolicyDocument: Syntax errors in policy",
    "RequestLimitExceeded: Request limit exceeded",
    "api error ThrottlingException: Rate exceeded",
    "googleapi: Error 429: Too many requests, rateLimitExceeded",
]
UNCLEAR = [
    "BucketAlreadyExists: the bucket already exists",
    "RequestError: send request failed caused by: connection reset by peer",
    "context deadline exceeded",
    "StatusCode: 503, ServiceUnavailable",
    "InternalError: we encountered an internal error",
    "Plugin did not respond",
    "Request cancelled",
    "Provider produced inconsistent result after apply",
    "waiting for creation: timeout while waiting for state to become 'available'",
    "something nobody has ever seen",
    "operation canceled",
    "InvalidParameterValue: the request timed out",
    "waiting for EC2 Instance (i-0a1) create: api error UnauthorizedOperation: not authorized",
    "reading EC2 Instance (i-0a1): api error InvalidInstanceID.NotFound: does not exist",
    "reading App Mesh after creation: AccessDeniedException",
]


@pytest.mark.parametrize("text", REFUSED)
def test_refusals(text: str) -> None:
    """
    Validation, permission and quota errors say that nothing was made.
    """
    assert is_refusal([Diagnostic(summary="creating", detail=text)])


@pytest.mark.parametrize("text", UNCLEAR)
def test_what_is_no_refusal(text: str) -> None:
    """
    Already exists, timeouts, 5xx, lost connections, what failed after the create and the
    unknown say nothing of the kind.
    """
    assert not is_refusal([Diagnostic(summary="creating", detail=text)])


def test_no_error_is_no_refusal() -> None:
    """
    Without an error of the object itself nothing is proven.
    """
    assert not is_refusal([Diagnostic(severity="warning", summary="AccessDenied")])


def test_one_unclear_error_among_refusals_decides() -> None:
    """
    All errors of an object must be refusals.
    """
    refused, unclear = Diagnostic(summary="AccessDenied"), Diagnostic(summary="timed out")
    assert not is_refusal([refused, unclear])
