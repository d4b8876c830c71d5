// A conversation: turns, each a question and its answer, in the order in which they were asked.
//
// Several windows may change the same conversation, each its own copy. So every part has the time of its last change,
// and a turn that was taken back leaves a mark. Joined in any order, copies become the same.

function newId() {
  return crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;
}

export function created(id = newId()) {
  const seed = Math.floor(Math.random() * 2 ** 32);
  return { id, made: Date.now(), seed, system: { text: "", changed: 0 }, turns: [] };
}

// The ending of an answer is null while it is written, or if its window was closed meanwhile.
export function emptyAnswer() {
  return { content: "", thought: "", tokens: [], ending: null, told: "", figures: "" };
}

export function isBlank({ content, thought }) {
  return !content && !thought;
}

// A part has changed: later than its last change, also where the clock went back.
function touch(part) {
  part.changed = Math.max(Date.now(), part.changed + 1);
}

export function addTurn(conversation, question) {
  const asked = Math.max(Date.now(), ...conversation.turns.map((each) => each.asked + 1));
  const turn = { id: newId(), asked, changed: asked, question, draws: 0, answer: emptyAnswer() };
  conversation.turns.push(turn);
  return turn;
}

export function setAnswer(turn, answer) {
  turn.answer = answer;
  touch(turn);
}

// Another draw of the sampler; returns its seed.
export function nextSeed(conversation, turn) {
  touch(turn);
  return conversation.seed + turn.draws++;
}

export function takeBack(turn) {
  Object.assign(turn, { question: "", answer: emptyAnswer(), isTakenBack: true });
  touch(turn);
}

export function setSystem({ system }, text) {
  system.text = text;
  touch(system);
}

export function turnsOf(conversation) {
  return conversation.turns.filter((turn) => !turn.isTakenBack);
}

export function isEmpty(conversation) {
  return !turnsOf(conversation).length && !conversation.system.text;
}

export function titleOf(conversation) {
  return turnsOf(conversation)[0]?.question.slice(0, 60) || "New conversation";
}

// When something was last asked.
export function lastAsked(conversation) {
  return conversation.turns.at(-1)?.asked ?? conversation.made;
}

// What a model has to know to answer a turn, or, with `begun`, to write on from that part of its answer.
export function messagesFor(conversation, turn, begun) {
  const system = conversation.system.text.trim();
  const messages = system ? [{ role: "system", content: system }] : [];
  for (const each of turnsOf(conversation)) {
    messages.push({ role: "user", content: each.question });
    if (each !== turn) messages.push({ role: "assistant", content: each.answer.content });
    else break;
  }
  if (begun) {
    const thought = begun.thought ? { reasoning_content: begun.thought } : {};
    messages.push({ role: "assistant", content: begun.content, ...thought });
  }
  return messages;
}

// Take over what a copy has and this one has not. Turns stay the objects that they are.
export function join(conversation, copy) {
  if (copy.system.changed > conversation.system.changed) conversation.system = { ...copy.system };
  for (const turn of copy.turns) {
    const own = conversation.turns.find(({ id }) => id === turn.id);
    if (!own) conversation.turns.push(turn);
    else if (turn.changed > own.changed) Object.assign(own, turn);
  }
  conversation.turns.sort((a, b) => a.asked - b.asked || (a.id < b.id ? -1 : 1));
}

// Whether a conversation has what a copy of it has not.
export function isAhead(conversation, copy) {
  const changed = new Map(copy.turns.map((turn) => [turn.id, turn.changed]));
  return conversation.system.changed > copy.system.changed
    || conversation.turns.some((turn) => !(turn.changed <= changed.get(turn.id)));
}

// Whether a value is a conversation: what was kept may be from another version.
export function isConversation(value) {
  const isTurn = (turn) => typeof turn?.question === "string" && typeof turn.answer?.content === "string"
    && Array.isArray(turn.answer.tokens);
  return typeof value?.id === "string" && Array.isArray(value.turns) && value.turns.every(isTurn)
    && typeof value.system?.text === "string";
}
