"""Laws of leaving out AMX: llama.cpp never sees it among the layouts that it may choose, and sees all others."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from edge_spec.llama_cpp.library import leave_out_amx, library


class FakeLibrary(SimpleNamespace):
    """ggml's functions over an array of layouts, which it reads again at every load as ggml does."""

    def __init__(self, names: list[bytes]) -> None:
        self.array = (ctypes.c_void_p * (len(names) + 1))(*range(1, len(names) + 1), None)
        self.names = dict(enumerate(names, start=1))
        # A callback cannot return a pointer, and an address is the same to who calls it.
        self.layouts_of = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: ctypes.addressof(self.array))

        def address_of(registry: int, name: bytes) -> int | None:
            return ctypes.cast(self.layouts_of, ctypes.c_void_p).value

        super().__init__(
            ggml_backend_dev_by_type=lambda kind: 7,
            ggml_backend_dev_backend_reg=lambda device: 8,
            ggml_backend_reg_get_proc_address=address_of,
            ggml_backend_buft_name=lambda layout: self.names[layout],
        )

    def seen(self) -> list[bytes]:
        """Names of the layouts up to the null pointer."""
        found: list[bytes] = []
        for layout in self.array:
            if layout is None:
                break
            found.append(self.names[layout])
        return found


@pytest.mark.parametrize(
    "names", [[b"AMX", b"CPU_REPACK"], [b"CPU_REPACK", b"AMX"], [b"A", b"AMX", b"B", b"AMX", b"C"], [b"AMX"]], ids=str
)
def test_amx_is_removed_and_the_others_stay_in_order(names: list[bytes]) -> None:
    lib = FakeLibrary(names)
    assert leave_out_amx(lib)
    assert lib.seen() == [name for name in names if name != b"AMX"]
    assert not leave_out_amx(lib)


@pytest.mark.parametrize("names", [[], [b"CPU_REPACK"]], ids=str)
def test_without_amx_nothing_changes(names: list[bytes]) -> None:
    lib = FakeLibrary(names)
    assert not leave_out_amx(lib)
    assert lib.seen() == names


def test_a_library_that_does_not_say_is_left_alone() -> None:
    lib = FakeLibrary([b"AMX"])
    lib.ggml_backend_reg_get_proc_address = lambda registry, name: None
    assert not leave_out_amx(lib)
    lib.ggml_backend_dev_by_type = lambda kind: None
    assert not leave_out_amx(lib)
    nothing: Any = SimpleNamespace()
    assert not leave_out_amx(nothing)


def test_llama_cpp_as_it_is_loaded_here_has_no_amx() -> None:
    assert not leave_out_amx(library().c._lib)
