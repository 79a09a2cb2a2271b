package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"

	"kube-e2e/compared"
)

// results is the file of one run. A line is there as soon as its spec has ended, so
// that a run that is cut short has told of those before.
type results struct {
	file *os.File
	err  error
}

func newResults(path string) (*results, error) {
	if path == "" {
		return nil, errors.New("--results is required")
	}
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("create results: %w", err)
	}
	return &results{file: file}, nil
}

func (r *results) write(report ginkgo.SpecReport) {
	// Those that were not selected are reported as skipped, without having begun.
	if report.LeafNodeType != types.NodeTypeIt || report.StartTime.IsZero() || report.NumAttempts == 0 {
		return
	}
	line, err := json.Marshal(compared.Result{
		Name:    report.FullText(),
		State:   report.State.String(),
		Seconds: report.RunTime.Seconds(),
		Reason:  strings.TrimSpace(report.Failure.Message),
	})
	if err == nil {
		_, err = r.file.Write(append(line, '\n'))
	}
	r.err = errors.Join(r.err, err)
}

func (r *results) close() error {
	if err := errors.Join(r.err, r.file.Close()); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}
