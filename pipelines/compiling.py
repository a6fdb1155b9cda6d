"""What `train.compile` needs of a machine, told in one line where it is not there.

Must not know what is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pipelines.errors import InputError


@contextmanager
def compiler_told(*, compiles: bool) -> Iterator[None]:
    """Turns the failure of `torch.compile`'s compiler in the body into an error for people.

    A compiler is looked for at the first pass through the model. That it is missing would come again at every
    start of the workers, which an InputError prevents. Without `compiles` nothing is done, or imported.

    Raises:
        InputError: the compiler is missing or fails; names its first complaint.
    """
    if not compiles:
        yield
        return
    from torch._dynamo.exc import BackendCompilerFailed

    try:
        yield
    except BackendCompilerFailed as error:
        raise InputError(
            "train.compile needs a working compiler on every node (on CPUs g++, or what CXX names): "
            f"{_complaint(error.inner_exception)}; install one, or set train.compile=false"
        ) from error


def _complaint(error: Exception) -> str:
    """The line of a compiler's output that says what is wrong, else the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line), lines[0] if lines else type(error).__name__)
