// The figures of an answer in words.

// What the server tells of an answer that has ended.
export function figuresOf(usage, { timings: [timings], speed_up: speedUp }) {
  const figures = [`${timings.tokens_per_s.toFixed(0)} tokens/s`];
  if (usage.rounds) figures.push(perRound(usage.completion_tokens, usage.rounds));
  if (speedUp) figures.push(`${speedUp.toFixed(2)} times as fast as without drafts`);
  if (usage.drafted_tokens) figures.push(`${usage.accepted_tokens} of ${usage.drafted_tokens} drafted ones accepted`);
  return figures.join(" · ");
}

function perRound(tokens, rounds) {
  return `${(tokens / rounds).toFixed(2)} tokens per round`;
}

// What is seen here of an answer while it comes: all that there is of one that was stopped.
export class Meter {
  #began = 0;
  #atFirst = 0;
  #last = 0;
  #tokens = 0;
  #rounds = new Set();

  take(events) {
    const tokens = events.filter(({ id }) => id !== null);
    if (!tokens.length) return;
    this.#last = performance.now();
    this.#tokens += tokens.length;
    if (!this.#began) {
      this.#began = this.#last;
      this.#atFirst = tokens.length;
    }
    for (const { round } of tokens) this.#rounds.add(round);
  }

  told() {
    const figures = [];
    const seconds = (this.#last - this.#began) / 1000;
    // The first ones came with the prompt.
    if (seconds) figures.push(`${((this.#tokens - this.#atFirst) / seconds).toFixed(0)} tokens/s`);
    if (this.#tokens) figures.push(perRound(this.#tokens, this.#rounds.size));
    return figures.join(" · ");
  }
}
