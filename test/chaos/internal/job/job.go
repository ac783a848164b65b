// Package job lets a program start itself as a worker: an environment variable has the job.
package job

import (
	"encoding/json"
	"fmt"
	"os"

	"go.uber.org/goleak"
)

// Main decodes the job in the environment variable, does it by run, and exits, if there is one.
func Main(variable string, job any, run func() error) {
	text, ok := os.LookupEnv(variable)
	if !ok {
		return
	}
	err := json.Unmarshal([]byte(text), job)
	if err == nil {
		err = run()
	}
	if err == nil {
		err = goleak.Find()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Environ returns the environment variable that makes Main do a job.
func Environ(variable string, job any) string {
	text, err := json.Marshal(job)
	if err != nil {
		panic(err) // numbers and strings can't fail
	}
	return variable + "=" + string(text)
}
