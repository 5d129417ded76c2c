// OpenAI's SDK before the proxy.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
	"tokenweir.test/sdks/report"
)

const (
	question   = "How much water goes over the weir?"
	readTokens = 12
)

var (
	ctx    = context.Background()
	gate   = map[string]any{"type": "object", "properties": map[string]any{"by_cm": map[string]any{"type": "integer"}}}
	client = clientWith("KEY")
)

func clientWith(key string) openai.Client {
	return openai.NewClient(
		option.WithBaseURL(os.Getenv("TOKENWEIR_URL")+"/v1"),
		option.WithAPIKey(os.Getenv(key)),
		option.WithMaxRetries(0),
		option.WithRequestTimeout(20*time.Second),
	)
}

func asked(model string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:    model,
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(question)},
	}
}

func take(told *report.Report, answer *openai.ChatCompletion) {
	choice := answer.Choices[0]
	told.Text, told.Finish = choice.Message.Content, choice.FinishReason
	for _, call := range choice.Message.ToolCalls {
		told.Arguments += call.Function.Arguments
	}
	if used := answer.Usage; used.TotalTokens > 0 {
		told.Usage = &report.Usage{
			Prompt: used.PromptTokens, Cached: used.PromptTokensDetails.CachedTokens, Completion: used.CompletionTokens,
		}
	}
}

func plain(model string, told *report.Report) error {
	return plainWith(client, model, told)
}

func plainWith(client openai.Client, model string, told *report.Report) error {
	answer, err := client.Chat.Completions.New(ctx, asked(model))
	if err == nil {
		take(told, answer)
	}
	return err
}

func streamed(params openai.ChatCompletionNewParams, told *report.Report) error {
	stream := client.Chat.Completions.NewStreaming(ctx, params)
	defer stream.Close()
	var answer openai.ChatCompletionAccumulator
	for stream.Next() {
		if !answer.AddChunk(stream.Current()) {
			return fmt.Errorf("the accumulator refused %s", stream.Current().RawJSON())
		}
	}
	if stream.Err() == nil {
		take(told, &answer.ChatCompletion)
	}
	return stream.Err()
}

func stream(model string, told *report.Report) error {
	return streamed(asked(model), told)
}

func streamUsage(model string, told *report.Report) error {
	params := asked(model)
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	return streamed(params, told)
}

func tools(model string, told *report.Report) error {
	params := asked(model)
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	params.Tools = []openai.ChatCompletionToolUnionParam{
		openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "open_gate", Parameters: gate}),
	}
	return streamed(params, told)
}

func leave(model string, told *report.Report) error {
	stream := client.Chat.Completions.NewStreaming(ctx, asked(model))
	for read := 0; read < readTokens && stream.Next(); {
		if part := stream.Current().Choices[0].Delta.Content; part != "" {
			told.Text += part
			read++
		}
	}
	if stream.Err() != nil {
		return stream.Err()
	}
	return stream.Close()
}

func responded(told *report.Report, answer *responses.Response) {
	told.Text, told.Finish = answer.OutputText(), string(answer.Status)
	for _, item := range answer.Output {
		if item.Type == "function_call" {
			told.Arguments += item.AsFunctionCall().Arguments
		}
	}
	used := answer.Usage
	told.Usage = &report.Usage{
		Prompt: used.InputTokens, Cached: used.InputTokensDetails.CachedTokens, Completion: used.OutputTokens,
	}
}

func responseAsked(model string) responses.ResponseNewParams {
	return responses.ResponseNewParams{
		Model: model,
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(question)},
	}
}

func respond(model string, told *report.Report) error {
	answer, err := client.Responses.New(ctx, responseAsked(model))
	if err == nil {
		responded(told, answer)
	}
	return err
}

func respondStreamed(params responses.ResponseNewParams, told *report.Report) error {
	stream := client.Responses.NewStreaming(ctx, params)
	defer stream.Close()
	text, arguments := "", ""
	for stream.Next() {
		switch event := stream.Current(); event.Type {
		case "response.output_text.delta":
			text += event.Delta
		case "response.function_call_arguments.delta":
			arguments += event.Delta
		case "response.completed":
			responded(told, &event.Response)
		}
	}
	if stream.Err() == nil && (told.Text != text || told.Arguments != arguments) {
		return fmt.Errorf("the pieces are %q and %q", text, arguments)
	}
	return stream.Err()
}

func respondTools(model string, told *report.Report) error {
	params := responseAsked(model)
	params.Tools = []responses.ToolUnionParam{
		{OfFunction: &responses.FunctionToolParam{Name: "open_gate", Parameters: gate, Strict: openai.Bool(false)}},
	}
	return respondStreamed(params, told)
}

func embed(model string, told *report.Report) error {
	made, err := client.Embeddings.New(ctx, openai.EmbeddingNewParams{
		Model: model, Input: openai.EmbeddingNewParamsInputUnion{OfString: openai.String(question)},
	})
	if err == nil {
		told.Vector = made.Data[0].Embedding
		told.Usage = &report.Usage{Prompt: made.Usage.PromptTokens}
	}
	return err
}

func models(_ string, told *report.Report) error {
	pages := client.Models.ListAutoPaging(ctx)
	for pages.Next() {
		told.Models = append(told.Models, pages.Current().ID)
	}
	return pages.Err()
}

func failure(err error) *report.Failure {
	var refused *openai.Error
	if errors.As(err, &refused) {
		return &report.Failure{
			Type: fmt.Sprintf("%T", refused), Status: refused.StatusCode, Kind: refused.Code, Message: refused.Message,
		}
	}
	return &report.Failure{Type: fmt.Sprintf("%T", err), Message: err.Error()}
}

func main() {
	report.All([]report.Scenario{
		{Name: "plain", Run: plain},
		{Name: "stream", Run: stream},
		{Name: "stream_usage", Run: streamUsage},
		{Name: "tools", Run: tools},
		{Name: "leave", Run: leave},
		{Name: "broken", Run: stream},
		{Name: "responses", Run: respond},
		{Name: "responses_stream", Run: func(model string, told *report.Report) error {
			return respondStreamed(responseAsked(model), told)
		}},
		{Name: "responses_tools", Run: respondTools},
		{Name: "embeddings", Run: embed},
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
