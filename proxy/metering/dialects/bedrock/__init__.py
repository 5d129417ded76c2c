"""Amazon Bedrock: InvokeModel and Converse, whole and streamed, and CountTokens."""
