"""A process that finds few libraries, as a machine has them that is lent for training alone."""

from __future__ import annotations

import subprocess
import sys

__all__ = ["run_with_few_libraries"]


def run_with_few_libraries(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process that finds the standard library, NumPy, PyTorch if it is installed, and nothing else."""
    blocked = """
import sys

class OnlyNumbers:
    @staticmethod
    def find_spec(name, path=None, target=None):
        top = name.partition(".")[0]
        if top in {*sys.stdlib_module_names, "numpy", "torch", "edge_spec"}:
            return None
        # What PyTorch itself imports is PyTorch.
        frame = sys._getframe(1)
        while frame and frame.f_globals.get("__name__", "").startswith(("importlib", "_frozen")):
            frame = frame.f_back
        importer = frame.f_globals.get("__name__", "").partition(".")[0] if frame else ""
        if importer in {"edge_spec", "__main__"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

sys.meta_path.insert(0, OnlyNumbers)
"""
    return subprocess.run([sys.executable, "-c", blocked + code], capture_output=True, text=True, check=False)
