// The turns of the conversation that is shown.

import { copyButton } from "./copying.js";
import { element, Place } from "./elements.js";
import { markdown } from "./markdown.js";
import { shownTokens } from "./tokens.js";

// What is said of answers that may not be whole.
const NOTES = {
  stopped: "Stopped.",
  length: "Stopped at the longest length.",
  context: "Stopped: the context is full.",
  memory: "Stopped: no memory is left; close other programs.",
  timeout: "Stopped: it took too long.",
  failed: "Broken off:",
  left: "Broken off: the page was closed.",
  elsewhere: "Another window is writing this answer.",
};

// `state` is the answer's ending, or `writing` (here), `elsewhere`, `left` (by a window that is gone).
function noteOf({ told }, state) {
  return [NOTES[state] ?? "", told].filter(Boolean).join(" ");
}

function canContinue({ content }, state) {
  return Boolean(content) && state in NOTES && !["context", "elsewhere"].includes(state);
}

function shownText(answer, hasColors) {
  const nodes = [];
  if (answer.thought) {
    const summary = element("summary", { textContent: "Thoughts" });
    nodes.push(element("details", {}, summary, element("p", { className: "thought", textContent: answer.thought })));
  }
  const isByToken = hasColors && answer.tokens.length;
  nodes.push(...(isByToken ? shownTokens(answer.tokens) : markdown(answer.content)));
  return nodes;
}

function button(name, textContent, act) {
  const made = element("button", { type: "button", id: name, name, textContent });
  made.addEventListener("click", act);
  return made;
}

function spoken(text) {
  return element("span", { className: "hidden", textContent: text });
}

function added(turn) {
  const text = new Place();
  const foot = new Place();
  const question = element("li", { className: "user" }, spoken("You: "), turn.question);
  const item = element("li", { className: "assistant" }, spoken("Answer: "), text.node, foot.node);
  return { question, item, text, foot };
}

export class Messages {
  #list;
  #acts;
  #shown = new Map();

  // `acts` are called with a turn: `retry` and `proceed`.
  constructor(list, acts) {
    this.#list = list;
    this.#acts = acts;
  }

  // Show turns; `look` tells of each its answer as far as it is there, its state, and whether more can be asked of it.
  show(turns, look, hasColors) {
    const ids = new Set(turns.map(({ id }) => id));
    for (const [id, { question, item }] of this.#shown) {
      if (ids.has(id)) continue;
      question.remove();
      item.remove();
      this.#shown.delete(id);
    }
    const nodes = turns.flatMap((turn) => this.#nodes(turn, look(turn), hasColors));
    nodes.forEach((node, place) => {
      const there = this.#list.children[place];
      if (there !== node) this.#list.insertBefore(node, there ?? null);
    });
  }

  #nodes(turn, { answer, state, isLast }, hasColors) {
    if (!this.#shown.has(turn.id)) this.#shown.set(turn.id, added(turn));
    const { question, item, text, foot } = this.#shown.get(turn.id);
    const { content, thought, tokens, told } = answer;
    const sizes = [content, thought, tokens].map(({ length }) => length);
    text.show([turn.changed, turn.draws, ...sizes, hasColors].join(), () => {
      const made = element("div", {}, shownText(answer, hasColors));
      const [thoughts, before] = [made, text.node].map((each) => each.querySelector("details"));
      if (thoughts) thoughts.open = Boolean(before?.open);
      return made;
    });
    foot.show([state, isLast, Boolean(content), turn.changed, told].join(), () => this.#foot(turn, answer, state, isLast));
    return [question, item];
  }

  #foot(turn, answer, state, isLast) {
    const made = element("div");
    if (state === "writing") return made;
    const note = noteOf(answer, state);
    if (note) made.append(element("p", { className: "note", textContent: note }));
    const tools = [];
    if (answer.content) tools.push(copyButton(answer.content, "Copy the answer"));
    if (isLast && state !== "elsewhere") {
      if (canContinue(answer, state)) tools.push(button("continue", "Continue", () => this.#acts.proceed(turn)));
      tools.push(button("retry", "Retry", () => this.#acts.retry(turn)));
    }
    made.append(element("div", { className: "tools" }, tools));
    return made;
  }
}
