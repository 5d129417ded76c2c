"""Streams an answer through Tokenweir with OpenAI's Python SDK (`pip install openai`); needs $KEY, a client's key."""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("TOKENWEIR_URL", "http://127.0.0.1:8080/v1"), api_key=os.environ["KEY"])
for chunk in client.chat.completions.create(
    model="gpt-4o-mini", stream=True, messages=[{"role": "user", "content": "hello"}]
):
    print(chunk.choices[0].delta.content or "", end="")
