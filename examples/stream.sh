#!/bin/sh
# Streams an answer through Tokenweir with curl; needs $KEY, a client's key.
curl -fsSN "${TOKENWEIR_URL:-http://127.0.0.1:8080/v1}/chat/completions" -H "Authorization: Bearer $KEY" \
     -d '{"model": "gpt-4o-mini", "stream": true, "messages": [{"role": "user", "content": "hello"}]}'
