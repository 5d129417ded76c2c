// The other way TensorLoop's page names: Node's own fetch and a reader, a line at a time, without any SDK.

const response = await fetch(`${process.env.BASE_URL}/chat/completions`, {
  method: "POST",
  headers: { "Content-Type": "application/json", Authorization: `Bearer ${process.env.API_KEY}` },
  body: JSON.stringify({
    model: process.env.MODEL,
    messages: [{ role: "user", content: "Count the gates." }],
    stream: true,
  }),
});

const reader = response.body.getReader();
const decoder = new TextDecoder();
let unread = "";
for (;;) {
  const { done, value } = await reader.read();
  if (done) break;
  unread += decoder.decode(value, { stream: true });
  const lines = unread.split("\n");
  unread = lines.pop();
  for (const line of lines) {
    if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
    process.stdout.write(JSON.parse(line.slice("data: ".length)).choices[0].delta.content ?? "");
  }
}
