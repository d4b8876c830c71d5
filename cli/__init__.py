if __name__ != "edge_spec.cli":
    raise ImportError("import edge_spec.cli, not cli")
