// Streams an answer through Tokenweir with OpenAI's Node SDK (`npm install openai`); needs $KEY, a client's key.
import OpenAI from "openai";

const client = new OpenAI({
  baseURL: process.env.TOKENWEIR_URL ?? "http://127.0.0.1:8080/v1",
  apiKey: process.env.KEY,
});
const stream = await client.chat.completions.create({
  model: "gpt-4o-mini",
  stream: true,
  messages: [{ role: "user", content: "hello" }],
});
for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
