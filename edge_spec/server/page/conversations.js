// The conversations that this browser keeps, one record each, which all its windows read and write.
//
// What is in memory is never replaced, only joined with what others have written: if there is no room in the store,
// nothing that is shown is lost.

import { isAhead, isConversation, isEmpty, join, lastAsked } from "./conversation.js";
import { forget, former } from "./former.js";
import { lasting, names, read, write } from "./storage.js";

const PREFIX = "edge-spec conversation ";
const PAUSE_MS = 300;

export class Conversations {
  #all = new Map();
  #unkept = new Set();
  #waiting = new Set();
  #timer = 0;
  #heard;

  // `heard` is called after another window has changed something.
  constructor(heard) {
    this.#heard = heard;
    for (const name of names(lasting, PREFIX)) this.#take(read(lasting, name));
    this.#takeOver();
    addEventListener("storage", (event) => this.#listen(event));
    addEventListener("pagehide", () => this.#keepWaiting());
  }

  // Those that are kept, the one that was last asked something first.
  all() {
    return [...this.#all.values()].sort((a, b) => lastAsked(b) - lastAsked(a));
  }

  get(id) {
    return this.#all.get(id);
  }

  has(conversation) {
    return this.#all.get(conversation.id) === conversation;
  }

  // Whether the browser had no room for something.
  get isFull() {
    return this.#unkept.size > 0;
  }

  add(conversation) {
    this.#all.set(conversation.id, conversation);
  }

  // Write a conversation; one that was removed stays so until it is added again.
  keep(conversation) {
    this.#waiting.delete(conversation);
    if (!this.has(conversation)) return;
    this.#unkept.add(conversation);
    this.#keepUnkept();
  }

  // The same within a moment, for what changes with every token.
  keepSoon(conversation) {
    this.#waiting.add(conversation);
    this.#timer ||= setTimeout(() => this.#keepWaiting(), PAUSE_MS);
  }

  remove(conversation) {
    write(lasting, PREFIX + conversation.id, null);
    forget([conversation.id]);
    this.#drop(conversation);
  }

  #keepWaiting() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    for (const each of this.#waiting) this.keep(each);
  }

  #drop(conversation) {
    this.#all.delete(conversation.id);
    this.#unkept.delete(conversation);
    this.#keepUnkept();
  }

  // There may be room again for what had none.
  #keepUnkept() {
    for (const each of this.#unkept) {
      const name = PREFIX + each.id;
      const stored = read(lasting, name);
      if (isConversation(stored)) join(each, stored);
      if (write(lasting, name, isEmpty(each) ? null : each)) this.#unkept.delete(each);
    }
  }

  #take(stored) {
    if (!isConversation(stored)) return;
    const own = this.#all.get(stored.id);
    if (!own) return this.add(stored);
    join(own, stored);
    // Two windows wrote at the same moment.
    if (isAhead(own, stored)) this.keepSoon(own);
  }

  #listen({ key, newValue }) {
    if (key !== null && !key.startsWith(PREFIX)) return;
    // A store that is emptied names no key.
    const gone = key === null ? this.all() : [this.#all.get(key.slice(PREFIX.length))];
    if (newValue === null) gone.filter(Boolean).forEach((each) => this.#drop(each));
    else this.#take(read(() => ({ getItem: () => newValue }), key));
    this.#heard();
  }

  // Both forms may not fit at once, so what is taken over makes room for the rest.
  #takeOver() {
    for (let left = former(), isMore = true; left.length && isMore;) {
      left.forEach((each) => this.#take(each));
      const own = left.map(({ id }) => this.#all.get(id));
      own.forEach((each) => this.keep(each));
      const kept = own.filter((each) => !this.#unkept.has(each)).map(({ id }) => id);
      forget(kept);
      left = left.filter(({ id }) => !kept.includes(id));
      isMore = kept.length > 0;
    }
  }
}
