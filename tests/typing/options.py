"""What type checkers say of options: an expected error that does not come is an error itself."""

from __future__ import annotations

from typing import assert_type

from edge_spec import ChatSession, Replies, Reply, TextModel, load


def ask(model: TextModel) -> None:
    assert_type(model.generate("Hi", temperature=0.3, top_k=5, seed=1, max_tokens=9), Reply)
    assert_type(model.generate("Hi", n=4, logit_bias={7: -1.0}, dry_breakers=["a"]), Replies)
    assert_type(model.generate_many(["Hi"], min_p=0.1), Replies)
    assert_type(model.chat("Be brief.", max_tokens=9), ChatSession)
    model.generate("Hi", temprature=0.3)  # type: ignore[call-overload]
    model.generate("Hi", n=4, temprature=0.3)  # type: ignore[call-overload]
    model.generate("Hi", temperature="warm")  # type: ignore[call-overload]
    model.generate("Hi", max_token=3)  # type: ignore[call-overload]
    model.generate_many(["Hi"], temprature=0.3)  # type: ignore[call-arg]
    model.sampler_settings(top_k="all")  # type: ignore[arg-type]
    model.chat("Be brief.", max_token=9)  # type: ignore[call-arg]
    model.chat().send("Hi", timeout="soon")  # type: ignore[arg-type]


def open_models() -> None:
    assert_type(load("demo", memory="2GiB", n_ctx=4096, kv_k="f16", n_threads=2), TextModel)
    load("demo", memroy="2GiB")  # type: ignore[call-arg]
    load("demo", n_ctx="4096")  # type: ignore[arg-type]
    load("demo", n_threads="all")  # type: ignore[arg-type]
