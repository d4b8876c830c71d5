"""What type checkers say of options of ``generate``: an expected error that does not come is an error itself."""

from __future__ import annotations

from typing import assert_type

from edge_spec import Replies, Reply, TextModel


def ask(model: TextModel) -> None:
    assert_type(model.generate("Hi", temperature=0.3, top_k=5, seed=1, max_tokens=9), Reply)
    assert_type(model.generate("Hi", n=4, logit_bias={7: -1.0}, dry_breakers=["a"]), Replies)
    assert_type(model.generate_many(["Hi"], min_p=0.1), Replies)
    model.generate("Hi", temprature=0.3)  # type: ignore[call-overload]
    model.generate("Hi", n=4, temprature=0.3)  # type: ignore[call-overload]
    model.generate("Hi", temperature="warm")  # type: ignore[call-overload]
    model.generate("Hi", max_token=3)  # type: ignore[call-overload]
    model.generate_many(["Hi"], temprature=0.3)  # type: ignore[call-arg]
    model.sampler_settings(top_k="all")  # type: ignore[arg-type]
