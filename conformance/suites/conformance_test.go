// Put beside go-redis' tests: one JSON line for each spec as it ends, so that a spec that takes the program
// down loses no others.
package redis_test

import (
	"encoding/json"
	"os"
	"strings"

	. "github.com/bsm/ginkgo/v2"
)

var _ = ReportAfterEach(func(report SpecReport) {
	path := os.Getenv("CONFORMANCE_RESULTS")
	if path == "" {
		return
	}
	line, err := json.Marshal(map[string]any{
		"test":    strings.Join(append(append([]string{}, report.ContainerHierarchyTexts...), report.LeafNodeText), " "),
		"state":   report.State.String(),
		"message": report.Failure.Message,
		"seconds": report.RunTime.Seconds(),
	})
	if err != nil {
		panic(err)
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	if _, err := file.Write(append(line, '\n')); err != nil {
		panic(err)
	}
})
