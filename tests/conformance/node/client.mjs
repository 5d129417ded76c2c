// Asked line by line: a JSON task in, a JSON answer out, in the same order. Ends with its input.
// It reads a stream as the providers' samples do: `chunk.choices[0]` without a check where no usage was asked for.

import { createInterface } from "node:readline";
import OpenAI from "openai";

function take(heard, chunk, usageAsked) {
  heard.chunks += 1;
  heard.response_id = heard.response_id ?? chunk.id;
  heard.usage = chunk.usage ?? heard.usage;
  if (usageAsked && chunk.choices.length === 0) return;
  const choice = chunk.choices[0];
  const part = choice.delta ?? choice.message ?? {};
  heard.texts.push(part.content ?? "");
  heard.reasoning += part.reasoning_content ?? "";
  for (const call of part.tool_calls ?? []) heard.arguments += call.function?.arguments ?? "";
  heard.finish_reason = choice.finish_reason ?? heard.finish_reason;
}

async function ask(client, task) {
  const heard = {
    texts: [], reasoning: "", arguments: "", finish_reason: null, usage: null, chunks: 0, response_id: null, broken: false,
  };
  const answer = await client.chat.completions.create(task.request);
  if (!task.request.stream) {
    take(heard, answer, false);
    return heard;
  }
  try {
    for await (const chunk of answer) {
      take(heard, chunk, task.usage_asked);
      if (task.leave_after && heard.chunks >= task.leave_after) break; // closes the stream
    }
  } catch (failure) {
    if (failure instanceof TypeError && !String(failure.message).includes("terminated")) throw failure;
    heard.broken = true;
  }
  return heard;
}

async function models(client) {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  return { names };
}

async function perform(task) {
  const client = new OpenAI({ baseURL: task.base_url, apiKey: task.key, maxRetries: 0 });
  try {
    return task.list_models ? await models(client) : await ask(client, task);
  } catch (failure) {
    const { name, message, status = null, param = null, code = null } = failure;
    return { error: { class: failure.constructor?.name ?? name, message, status, param, code } };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(JSON.stringify(await perform(JSON.parse(line))) + "\n");
}
