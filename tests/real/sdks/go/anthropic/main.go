// Anthropic's SDK before the proxy.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"tokenweir.test/sdks/report"
)

const (
	question   = "How much water goes over the weir?"
	readTokens = 12
)

var (
	ctx    = context.Background()
	client = clientWith("KEY")
)

func clientWith(key string) anthropic.Client {
	return anthropic.NewClient(
		option.WithBaseURL(os.Getenv("TOKENWEIR_URL")),
		option.WithAPIKey(os.Getenv(key)),
		option.WithMaxRetries(0),
		option.WithRequestTimeout(20*time.Second),
	)
}

func messages() []anthropic.MessageParam {
	return []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(question))}
}

func asked(model string) anthropic.MessageNewParams {
	return anthropic.MessageNewParams{Model: anthropic.Model(model), MaxTokens: 600, Messages: messages()}
}

func take(told *report.Report, answer *anthropic.Message) {
	for _, block := range answer.Content {
		switch block := block.AsAny().(type) {
		case anthropic.TextBlock:
			told.Text += block.Text
		case anthropic.ToolUseBlock:
			told.Arguments += string(block.Input)
		}
	}
	used := answer.Usage
	told.Finish = string(answer.StopReason)
	told.Usage = &report.Usage{
		Prompt:     used.InputTokens + used.CacheReadInputTokens + used.CacheCreationInputTokens,
		Cached:     used.CacheReadInputTokens,
		Completion: used.OutputTokens,
	}
}

func plain(model string, told *report.Report) error {
	return plainWith(client, model, told)
}

func plainWith(client anthropic.Client, model string, told *report.Report) error {
	answer, err := client.Messages.New(ctx, asked(model))
	if err == nil {
		take(told, answer)
	}
	return err
}

func streamed(params anthropic.MessageNewParams, told *report.Report) error {
	stream := client.Messages.NewStreaming(ctx, params)
	defer stream.Close()
	var answer anthropic.Message
	for stream.Next() {
		if err := answer.Accumulate(stream.Current()); err != nil {
			return err
		}
	}
	if stream.Err() == nil {
		take(told, &answer)
	}
	return stream.Err()
}

func stream(model string, told *report.Report) error {
	return streamed(asked(model), told)
}

func tools(model string, told *report.Report) error {
	params := asked(model)
	schema := anthropic.ToolInputSchemaParam{Properties: map[string]any{"by_cm": map[string]any{"type": "integer"}}}
	params.Tools = []anthropic.ToolUnionParam{anthropic.ToolUnionParamOfTool(schema, "open_gate")}
	return streamed(params, told)
}

func leave(model string, told *report.Report) error {
	stream := client.Messages.NewStreaming(ctx, asked(model))
	for read := 0; read < readTokens && stream.Next(); {
		if part := stream.Current().Delta.Text; part != "" {
			told.Text += part
			read++
		}
	}
	if stream.Err() != nil {
		return stream.Err()
	}
	return stream.Close()
}

func count(model string, told *report.Report) error {
	counted, err := client.Messages.CountTokens(ctx, anthropic.MessageCountTokensParams{
		Model: anthropic.Model(model), Messages: messages(),
	})
	if err == nil {
		told.Counted = counted.InputTokens
	}
	return err
}

func models(_ string, told *report.Report) error {
	pages := client.Models.ListAutoPaging(ctx, anthropic.ModelListParams{})
	for pages.Next() {
		told.Models = append(told.Models, pages.Current().ID)
	}
	return pages.Err()
}

func failure(err error) *report.Failure {
	var refused *anthropic.Error
	if !errors.As(err, &refused) {
		return &report.Failure{Type: fmt.Sprintf("%T", err), Message: err.Error()}
	}
	var body struct{ Error struct{ Message string } }
	_ = json.Unmarshal([]byte(refused.RawJSON()), &body)
	return &report.Failure{
		Type: fmt.Sprintf("%T", refused), Status: refused.StatusCode, Kind: string(refused.Type()), Message: body.Error.Message,
	}
}

func main() {
	report.All([]report.Scenario{
		{Name: "plain", Run: plain},
		{Name: "stream", Run: stream},
		{Name: "tools", Run: tools},
		{Name: "leave", Run: leave},
		{Name: "broken", Run: stream},
		{Name: "count_tokens", Run: count},
		{Name: "models", Run: models},
		{Name: "unknown_key", Run: func(model string, told *report.Report) error {
			return plainWith(clientWith("KEY_UNKNOWN"), model, told)
		}},
		{Name: "spent", Run: func(model string, told *report.Report) error {
			return plainWith(clientWith("KEY_SPENT"), model, told)
		}},
		{Name: "limited", Run: func(model string, told *report.Report) error {
			limited := clientWith("KEY_LIMITED")
			if err := plainWith(limited, model, told); err != nil {
				return err
			}
			return plainWith(limited, model, &report.Report{})
		}},
	}, failure)
}
