# Run by PyInstaller. Verbs and engines are imported by name when they are used, and models, prompts and shared
# libraries are opened as files: PyInstaller sees none of them in the code.

from PyInstaller.utils.hooks import collect_data_files, collect_dynamic_libs, collect_submodules, copy_metadata

from edge_spec.llama_cpp.library import why_not_installed


def _is_used(name: str) -> bool:
    return not name.startswith(("edge_spec.training", "edge_spec.cli.frozen"))


hiddenimports = collect_submodules("edge_spec", filter=_is_used)
binaries = collect_dynamic_libs("edge_spec")
datas = collect_data_files("edge_spec", excludes=["training"]) + copy_metadata("edge-spec")
datas += copy_metadata("onnxruntime")
if why_not_installed() is None:  # the extra `llama`
    hiddenimports += ["llama_cpp.llama_cpp"]
    binaries += collect_dynamic_libs("llama_cpp")
    datas += copy_metadata("llama-cpp-python")
