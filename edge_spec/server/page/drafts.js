// What was typed and not sent, by conversation. Each window has its own, since two may show the same conversation; a
// copy outlasts the window.

import { lasting, names, passing, read, write } from "./storage.js";

const PREFIX = "edge-spec draft ";

export function draftOf({ id }) {
  return read(passing, PREFIX + id) ?? read(lasting, PREFIX + id) ?? "";
}

export function keepDraft({ id }, text) {
  write(passing, PREFIX + id, text);
  write(lasting, PREFIX + id, text || null);
}

// The ids of the conversations that have one.
export function drafted() {
  return names(lasting, PREFIX).map((name) => name.slice(PREFIX.length));
}
