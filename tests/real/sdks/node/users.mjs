// Official SDKs that name who uses a request, each in its own way, before the proxy.

import Anthropic from "@anthropic-ai/sdk";
import { GoogleGenAI } from "@google/genai";
import { context, propagation } from "@opentelemetry/api";
import { W3CBaggagePropagator } from "@opentelemetry/core";
import OpenAI from "openai";
import { Portkey } from "portkey-ai";
import { all, QUESTION } from "./report.mjs";

const { TOKENWEIR_URL, KEY } = process.env;
const messages = [{ role: "user", content: QUESTION }];
const openai = (more = {}) => new OpenAI({ baseURL: `${TOKENWEIR_URL}/v1`, apiKey: KEY, maxRetries: 0, ...more });
const chat = (client, model, more = {}) => client.chat.completions.create({ model, messages, ...more });

function google(vertexai, httpOptions = {}) {
  return new GoogleGenAI({ apiKey: KEY, vertexai, httpOptions: { baseUrl: TOKENWEIR_URL, ...httpOptions } }).models;
}

async function withBaggage(model) {
  const entries = { "user.id": { value: "alice b" }, "session.id": { value: "s7" }, "tokenweir.tag.team": { value: "red" } };
  const named = propagation.setBaggage(context.active(), propagation.createBaggage(entries));
  const headers = {};
  new W3CBaggagePropagator().inject(named, headers, { set: (carrier, name, value) => (carrier[name] = value) });
  await openai().chat.completions.create({ model, messages }, { headers });
}

const answers = {
  "openai/users-chat": (model) => chat(openai(), model, { user: "alice", metadata: { team: "red" } }),
  "openai/users-responses": (model) => openai().responses.create({ model, input: QUESTION, safety_identifier: "alice" }),
  "openai/users-litellm": (model) =>
    chat(openai(), model, { user: "alice", litellm_session_id: "s7", metadata: { tags: ["team:red"], trace_id: "r1" } }),
  "openai/users-helicone": (model) => {
    const headers = { "Helicone-User-Id": "alice", "Helicone-Session-Id": "s7", "Helicone-Property-Team": "red" };
    return chat(openai({ defaultHeaders: headers }), model);
  },
  "openai/users-portkey": (model) => {
    const client = new Portkey({
      baseURL: `${TOKENWEIR_URL}/v1`, apiKey: "pk-theirs", Authorization: `Bearer ${KEY}`,
      metadata: { _user: "alice", team: "red" }, traceID: "r1",
    });
    return chat(client, model);
  },
  "openai/users-baggage": withBaggage,
  "anthropic/users-messages": (model) => {
    const client = new Anthropic({ baseURL: TOKENWEIR_URL, apiKey: KEY, maxRetries: 0 });
    return client.messages.create({ model, max_tokens: 9, messages, metadata: { user_id: "alice" } });
  },
  "gemini/users-gemini": (model) => {
    const headers = { "x-gemini-api-privileged-user-id": "alice" };
    const httpOptions = { headers, extraBody: { labels: { team: "red" } } };
    return google(false).generateContent({ model, contents: QUESTION, config: { httpOptions } });
  },
  "vertex/users-vertex": (model) => {
    const config = { labels: { team: "red" } };
    return google(true).generateContent({ model: `publishers/google/models/${model}`, contents: QUESTION, config });
  },
};

await all(
  Object.fromEntries(Object.entries(answers).map(([model, ask]) => [model, () => ask(model)])),
  ({ constructor, message }) => ({ type: constructor.name, message }),
);
