// What this browser keeps: lasting things for all its windows, passing ones for one window until that is closed.

export const lasting = () => localStorage;
export const passing = () => sessionStorage;

// A browser may allow neither. Null stands for what is not there, or is not JSON.
export function read(storage, name) {
  try {
    return JSON.parse(storage().getItem(name));
  } catch {
    return null;
  }
}

// Whether there was room; what was there before stays where there is none. Null removes it.
export function write(storage, name, value) {
  try {
    if (value === null) storage().removeItem(name);
    else storage().setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

export function names(storage, prefix) {
  try {
    return Object.keys(storage()).filter((name) => name.startsWith(prefix));
  } catch {
    return [];
  }
}
