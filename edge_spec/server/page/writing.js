// The answers that this window is writing, at most one for each conversation.

import { answer as chunksOf } from "./api.js";
import { emptyAnswer, isBlank, messagesFor, nextSeed, setAnswer } from "./conversation.js";
import { figuresOf, Meter } from "./figures.js";
import { hold } from "./windows.js";

export class Writing {
  #now = new Map();
  #conversations;
  #changed;

  // `changed` is called with a conversation when more of its answer is there.
  constructor(conversations, changed) {
    this.#conversations = conversations;
    this.#changed = changed;
  }

  isIn(conversation) {
    return this.#now.has(conversation.id);
  }

  // The answer of a turn as far as it is there; undefined if it is not written here.
  answerTo(turn) {
    return [...this.#now.values()].find((each) => each.turn === turn)?.answer;
  }

  stop(conversation) {
    this.#now.get(conversation.id)?.controller.abort();
  }

  // Write an answer, or go on with the one that is there. The answer of before stays until something of the new one has
  // come. Returns the answer, and whether the turn has it.
  async write(conversation, turn, { asked, key, isContinued }) {
    const begun = isContinued ? turn.answer : null;
    const answer = { ...structuredClone(begun ?? emptyAnswer()), ending: null, told: "" };
    const controller = new AbortController();
    const release = hold(turn);
    this.#now.set(conversation.id, { turn, answer, controller });
    const request = {
      ...asked,
      messages: messagesFor(conversation, turn, begun),
      ...(begun ? { continue_final_message: true, add_generation_prompt: false } : {}),
      seed: nextSeed(conversation, turn),
    };
    this.#conversations.keep(conversation);
    try {
      await this.#read(chunksOf(request, key, controller.signal), conversation, turn, answer);
    } catch (error) {
      Object.assign(answer, error.name === "AbortError" ? { ending: "stopped" } : { ending: "failed", told: error.message });
    }
    const isLess = ["stopped", "failed"].includes(answer.ending) && !isBlank(turn.answer) && !isContinued;
    const isKept = turn.answer === answer || !isLess;
    if (isKept) setAnswer(turn, answer);
    this.#now.delete(conversation.id);
    this.#conversations.keep(conversation);
    release();
    return { answer, isKept };
  }

  async #read(chunks, conversation, turn, answer) {
    const meter = new Meter();
    for await (const { choices, usage, edge_spec: told, progress } of chunks) {
      if (progress) answer.figures = progress;
      for (const { delta, token_events: events = [], finish_reason: reason, ended_by: endedBy } of choices) {
        answer.content += delta.content ?? "";
        answer.thought += delta.reasoning_content ?? "";
        answer.tokens.push(...events.map((event) => [event.text, event.drafted_by, event.round]));
        meter.take(events);
        if (events.length) answer.figures = meter.told();
        if (reason) answer.ending = endedBy ?? reason;
        if (delta.content || delta.reasoning_content) setAnswer(turn, answer);
      }
      if (usage) {
        answer.figures = figuresOf(usage, told);
        answer.told = told.notices.join(" ");
      }
      this.#conversations.keepSoon(conversation);
      this.#changed(conversation);
    }
  }
}
