"""Answers that others wrote, read by the target, which says of each token what it had expected there.

Reading is two to three times as fast as writing, since all tokens of an answer are known; but what others write is less
like what the target will write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from edge_spec.engines.base import HiddenRows
from edge_spec.errors import PromptError
from edge_spec.generation.prompts import PromptBuilder
from edge_spec.speculation.pool import Path as TextPath
from edge_spec.training.acceptance import rows_after
from edge_spec.training.clock import Clock, TimeIsUp
from edge_spec.training.drafter.exchanges import Exchange
from edge_spec.training.drafter.portions import portion_at, portion_number, read_paths, read_portion_path, save_portion
from edge_spec.training.drafter.settings import MakeSettings
from edge_spec.training.drafter.writing import Answer, likeliest

__all__ = ["AnswerReader", "read_portions"]

_EXCHANGES = 64
"""Exchanges of a portion."""

_MARK = "edge-spec reads here"


class AnswerReader:
    """Lets a target read.

    Args:
        hidden: of the target, where answers are to come with their hidden states.
        longest: the most tokens of a prompt; exchanges with longer ones are left out.
        answer_tokens: the most tokens of an answer; longer ones are cut.
    """

    def __init__(
        self,
        target: TextPath,
        builder: PromptBuilder,
        hidden: HiddenRows | None,
        *,
        longest: int,
        answer_tokens: int,
    ) -> None:
        self._target = target
        self._builder = builder
        self._hidden = hidden
        self._longest = longest
        self._answer_tokens = answer_tokens
        self._end = self._end_of_answers()

    def read(self, exchange: Exchange) -> tuple[list[int], Answer] | None:
        """Return a prompt in token ids, and its answer as if the target had written it.

        None if it is too long or empty.
        """
        prompt = self._builder.tokens_of(exchange.asked)
        answer = self._builder.tokenize(exchange.answer, add_special=False)
        if not 1 < len(prompt) <= self._longest or not answer:
            return None
        answer = [*answer, *self._end][: self._answer_tokens]
        found = Answer(answer)
        for row in rows_after(self._target, [*prompt, *answer[:-1]], len(prompt) - 1):
            ids, logs = likeliest(row)
            found.likeliest.append(ids)
            found.logs.append(logs)
        if self._hidden is not None:
            found.hidden = self._hidden[0 : len(prompt) + len(answer) - 1].copy()
        return prompt, found

    def _end_of_answers(self) -> list[int]:
        """Return the token that the target ends an answer with; none where its template does not say."""
        if self._builder.chat_template is None:
            return []
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}]
        try:
            after = self._builder.render(turns, answer=False).rpartition(_MARK)[2]
        except PromptError:
            return []
        first = self._builder.tokenize(after, add_special=False)[:1] if after else []
        return [token for token in first if self._builder.ends(token)]


def read_portions(
    folder: Path,
    exchanges: Sequence[Exchange],
    reader: AnswerReader,
    settings: MakeSettings,
    *,
    n_vocab: int,
    clock: Clock,
    say: Callable[[str], None],
) -> int:
    """Read portions until the answers have as many tokens as are asked for; returns how many they have.

    Raises:
        TimeIsUp: the time limit is reached.
    """
    paths = read_paths(folder)
    number = portion_number(paths[-1]) + 1 if paths else 0
    done = sum(len(portion_at(path).logs) for path in paths)
    began, began_s, wanted = done, clock.elapsed_s, settings.read_answers
    while done < wanted and number * _EXCHANGES < len(exchanges):
        if clock.over:
            raise TimeIsUp(f"the target has read {done:,} of {wanted:,} tokens of answers by others")
        some = exchanges[number * _EXCHANGES : (number + 1) * _EXCHANGES]
        found = [text for text in map(reader.read, some) if text is not None]
        if found:
            done += save_portion(read_portion_path(folder, number), found, n_vocab)
        number += 1
        speed = (done - began) / max(1e-9, clock.elapsed_s - began_s)
        left_min = max(0, wanted - done) / max(1e-9, speed) / 60
        say(f"answers by others: {done:,} of {wanted:,} tokens, {speed:,.0f} tokens/s, {left_min:.1f} min left")
    if done < wanted:
        say(f"answers by others: the texts hold {done:,} tokens of them; add texts for the {wanted:,} asked for")
    return done
