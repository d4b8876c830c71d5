// Conversations, kept in this browser.

const KEY = "edge-spec conversations";

export function load() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY));
    return Array.isArray(found) ? found : [];
  } catch {
    return [];
  }
}

// Whether there was room: a browser may allow none.
export function save(conversations) {
  try {
    localStorage.setItem(KEY, JSON.stringify(conversations));
    return true;
  } catch {
    return false;
  }
}

export function created() {
  return { id: crypto.randomUUID?.() ?? String(Math.random()), system: "", messages: [] };
}

export function titleOf(conversation) {
  return conversation.messages[0]?.content.slice(0, 60) || "New conversation";
}
