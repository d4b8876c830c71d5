# Run by PyInstaller. Verbs and engines are imported by name when they are used, and models, prompts and shared
# libraries are opened as files: PyInstaller sees none of them in the code.

from PyInstaller.utils.hooks import collect_data_files, collect_dynamic_libs, collect_submodules, copy_metadata


def _is_used(name: str) -> bool:
    return not name.startswith(("edge_spec.training", "edge_spec.cli.frozen"))


hiddenimports = [*collect_submodules("edge_spec", filter=_is_used), "llama_cpp.llama_cpp"]
binaries = collect_dynamic_libs("edge_spec") + collect_dynamic_libs("llama_cpp")
datas = [
    *collect_data_files("edge_spec", excludes=["training"]),
    *(entry for name in ("edge-spec", "llama-cpp-python", "onnxruntime") for entry in copy_metadata(name)),
]
