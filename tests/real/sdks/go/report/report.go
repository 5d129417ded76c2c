// Package report runs scenarios one after the other and prints what each came to, a JSON line each.
package report

import (
	"encoding/json"
	"fmt"
	"os"
)

// Usage is in the ledger's words: the prompt includes what a cache gave or took.
type Usage struct {
	Prompt     int64 `json:"prompt_tokens"`
	Cached     int64 `json:"cached_tokens"`
	Completion int64 `json:"completion_tokens"`
}

// Failure is an error as the SDK shows it.
type Failure struct {
	Type    string `json:"type"`
	Status  int    `json:"status"`
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

// Report is what the SDK reported in one scenario.
type Report struct {
	Scenario  string    `json:"scenario"`
	Text      string    `json:"text,omitempty"`
	Arguments string    `json:"arguments,omitempty"`
	Finish    string    `json:"finish,omitempty"`
	Usage     *Usage    `json:"usage"`
	Vector    []float64 `json:"vector,omitempty"`
	Counted   int64     `json:"counted,omitempty"`
	Models    []string  `json:"models,omitempty"`
	Error     *Failure  `json:"error,omitempty"`
}

// Scenario does one thing with the SDK; `model` is the scenario's own.
type Scenario struct {
	Name string
	Run  func(model string, report *Report) error
}

// All runs the scenarios; `failure` says what an error of the SDK is.
func All(scenarios []Scenario, failure func(error) *Failure) {
	for _, one := range scenarios {
		told := Report{Scenario: one.Name}
		if err := one.Run(os.Getenv("MODELS")+one.Name, &told); err != nil {
			told.Error = failure(err)
		}
		line, err := json.Marshal(told)
		if err != nil {
			panic(err)
		}
		fmt.Println(string(line))
	}
}
