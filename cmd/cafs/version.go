package main

import (
	"fmt"
	"os"
	"runtime"

	"github.com/urfave/cli/v2"
)

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:        "version",
		Usage:       "show the program's version",
		Description: example("cafs version"),
		Action: func(c *cli.Context) error {
			_, err := fmt.Fprintf(os.Stdout, "cafs %s, %s %s/%s\n", versionString(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
