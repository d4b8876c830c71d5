// The server's API, as any other client uses it.

const LEAVING_MS = 500;

async function failed(response) {
  try {
    return new Error((await response.json()).error.message);
  } catch {
    return new Error(`the server answered ${response.status}; is it still running?`);
  }
}

function lost() {
  return new Error("the connection to the server was lost; is it still running?");
}

// Browsers name what goes wrong on the way in words of their own. A page that is left loses its connections first: it
// must not take that for the server's doing, so it is told when the page would be gone.
async function reached(coming) {
  try {
    return await coming;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    await new Promise((resolve) => setTimeout(resolve, LEAVING_MS));
    throw lost();
  }
}

function headers(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

export async function models(key) {
  const response = await reached(fetch("/v1/models", { headers: headers(key) }));
  if (!response.ok) throw await failed(response);
  return (await response.json()).data;
}

// Memory held and allowed, in bytes; null where it is not told.
export async function memory(key) {
  const response = await fetch("/metrics", { headers: headers(key) });
  if (!response.ok) return null;
  let held = 0, budget = 0;
  for (const line of (await response.text()).split("\n")) {
    const value = Number(line.slice(line.lastIndexOf(" ") + 1));
    if (line.startsWith("edge_spec_memory_bytes{")) held += value;
    else if (line.startsWith("edge_spec_memory_budget_bytes ")) budget = value;
  }
  return budget ? { held, budget } : null;
}

// The chunks of an answer. What is done before there are any, such as loading the model, is their `progress`.
export async function* answer(asked, key, signal) {
  const response = await reached(fetch("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers(key) },
    body: JSON.stringify({ ...asked, stream: true, stream_options: { include_usage: true }, token_events: true }),
    signal,
  }));
  if (!response.ok) throw await failed(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reached(reader.read());
    if (done) throw lost();
    const events = (held + value).split("\n\n");
    held = events.pop();
    for (const event of events) {
      if (event === "data: [DONE]") return;
      if (event.startsWith(": ") && event !== ": waiting") yield { choices: [], progress: event.slice(2) };
      if (!event.startsWith("data: ")) continue;
      const chunk = JSON.parse(event.slice(6));
      if (chunk.error) throw new Error(chunk.error.message);
      yield chunk;
    }
  }
}
