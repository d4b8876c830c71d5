// Conversations and settings, kept in this browser; the key only until the window is closed.

const KEY = "edge-spec conversations";
const SETTINGS = "edge-spec settings";

function read(storage, name) {
  try {
    return JSON.parse(storage().getItem(name));
  } catch {
    return null;
  }
}

function write(storage, name, value) {
  try {
    storage().setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

const lasting = () => localStorage;
const passing = () => sessionStorage;

export function load() {
  const found = read(lasting, KEY);
  return Array.isArray(found) ? found : [];
}

// Whether there was room: a browser may allow none.
export function save(conversations) {
  return write(lasting, KEY, conversations);
}

export function loadSettings() {
  return { ...read(lasting, SETTINGS), key: read(passing, SETTINGS) ?? "" };
}

export function saveSettings({ key, ...others }) {
  write(lasting, SETTINGS, others);
  write(passing, SETTINGS, key);
}

export function created() {
  return { id: crypto.randomUUID?.() ?? String(Math.random()), system: "", messages: [] };
}

export function titleOf(conversation) {
  return conversation.messages[0]?.content.slice(0, 60) || "New conversation";
}
