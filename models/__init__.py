"""Model files: their content, whether two of them fit together, and where to find them.

Nothing here loads weights. Importing is cheap: heavy libraries are imported by the functions that need them.
"""

if __name__ != "edge_spec.models":
    raise ImportError("import edge_spec.models, not models")

from edge_spec.models.catalogue import Family, resolve, resolve_family
from edge_spec.models.gguf.header import GGUFArray, GGUFHeader, TensorInfo, read_header
from edge_spec.models.inspection import inspect, is_published
from edge_spec.models.made_drafters import drafter_of, made_drafter, made_drafter_folder
from edge_spec.models.model_file import ModelFile
from edge_spec.models.pairs import check_pair, kept_tokens
from edge_spec.tokens.tokenizer import VocabularyIdentity

__all__ = [
    "Family",
    "GGUFArray",
    "GGUFHeader",
    "ModelFile",
    "TensorInfo",
    "VocabularyIdentity",
    "check_pair",
    "drafter_of",
    "inspect",
    "is_published",
    "kept_tokens",
    "made_drafter",
    "made_drafter_folder",
    "read_header",
    "resolve",
    "resolve_family",
]
