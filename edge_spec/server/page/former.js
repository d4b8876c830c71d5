// The form in which conversations were kept before: all under one name, each a list of messages.

import { created, emptyAnswer } from "./conversation.js";
import { lasting, read, write } from "./storage.js";

const NAME = "edge-spec conversations";
const MOST_TURNS = 1e6;

function stored() {
  const found = read(lasting, NAME);
  return Array.isArray(found) ? found.filter((each) => Array.isArray(each?.messages)) : [];
}

// The newest came first, and no times were kept: these sort below all that have one. What is made is the same each
// time, so that taking it over twice changes nothing.
function conversation({ id, system, seed, messages }, place) {
  const made = { ...created(String(id)), made: place * MOST_TURNS };
  if (typeof seed === "number") made.seed = seed;
  if (system) made.system = { text: String(system), changed: 1 };
  for (const { role, content, thought, tokens, attempt } of messages) {
    const asked = made.made + made.turns.length;
    if (role === "user") {
      const answer = { ...emptyAnswer(), ending: "stopped" };
      made.turns.push({ id: `${id} ${made.turns.length}`, asked, changed: asked, question: String(content), draws: 1, answer });
    } else if (made.turns.length) {
      const turn = made.turns.at(-1);
      Object.assign(turn.answer, { content: String(content), thought: thought ?? "", tokens: tokens ?? [], ending: "eos" });
      turn.draws = (attempt ?? 0) + 1;
    }
  }
  return made;
}

export function former() {
  const found = stored();
  return found.map((each, number) => conversation(each, found.length - number));
}

export function forget(ids) {
  const found = stored();
  const left = found.filter(({ id }) => !ids.includes(String(id)));
  if (left.length < found.length) write(lasting, NAME, left.length ? left : null);
}
