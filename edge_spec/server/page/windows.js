// Which answers other windows of this browser are writing. A window holds a lock for each answer that it writes; the
// browser takes the locks of a window back when that is closed. Where a browser gives no locks (without HTTPS, on
// another computer), nothing is known of other windows.

const nameOf = (turn) => `edge-spec writing ${turn.id}`;
const elsewhere = new Map();

// Hold the lock of a turn; returns what gives it back.
export function hold(turn) {
  let release;
  const held = new Promise((resolve) => (release = resolve));
  navigator.locks?.request(nameOf(turn), () => held);
  return release;
}

// Whether another window may be writing the unfinished answer of a turn; `freed` is called when none is any more.
export function isElsewhere(turn, freed) {
  if (!navigator.locks) return false;
  const name = `${turn.id} ${turn.draws}`;
  if (!elsewhere.has(name)) {
    elsewhere.set(name, true);
    navigator.locks.request(nameOf(turn), { mode: "shared" }, () => {
      elsewhere.set(name, false);
      freed();
    });
  }
  return elsewhere.get(name);
}
