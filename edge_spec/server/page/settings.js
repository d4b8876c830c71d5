// Settings last; the key is kept only until the window is closed.

import { lasting, passing, read, write } from "./storage.js";

const NAME = "edge-spec settings";

export function load() {
  return { ...read(lasting, NAME), key: read(passing, NAME) ?? "" };
}

export function save({ key, ...others }) {
  write(lasting, NAME, others);
  write(passing, NAME, key);
}
