// Package main is the cafs command: flags, messages, exit codes and wiring.
//
// Each command has a file of its own with a constructor, an options struct and
// a run function that returns an error; only main picks the exit code
// (doc/exit-codes.md). Data go to stdout, messages to stderr as "cafs: …", in
// lower case and without a full stop, followed by what can be done about it as
// "cafs: hint: …".
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

func main() {
	os.Exit(run(os.Args))
}

// run runs the command line and returns the exit code. The first SIGINT or
// SIGTERM cancels what runs, the second one ends the process; mounts handle
// signals themselves.
func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	// A pipe whose reader has gone is an error of the write, so that what is open
	// gets closed. Not ignored: programs we start would inherit that.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	if isHelper(args[0]) {
		return runHelper(ctx, args[1:])
	}
	app := newApp()
	args, err := arrange(app, args)
	if err == nil {
		err = app.RunContext(ctx, args)
	}
	return report(os.Stderr, err)
}

func newApp() *cli.App {
	app := &cli.App{
		Name:  "cafs",
		Usage: "a directory in which everything you save gets a content address",
		Description: "cafs mounts a read-write directory. What is saved in it is kept as IPLD blocks,\n" +
			"and every file and directory has the CID that `ipfs add` would print for it.\n\n" +
			example("cafs mount ~/c                 # makes ~/c and the repository ~/.cafs",
				"cp -a photos ~/c && cafs cid ~/c/photos",
				"cafs umount ~/c"),
		Version:                versionString(),
		UseShortOptionHandling: false, // arrange splits them
		OnUsageError:           usageError,
		ExitErrHandler:         func(*cli.Context, error) {}, // main decides
		Flags:                  []cli.Flag{},
		Commands: []*cli.Command{
			mountCommand(), umountCommand(), statusCommand(), syncCommand(),
			cidCommand(), addCommand(),
			lsCommand(), catCommand(), getCommand(), statCommand(), blockCommand(), dagCommand(),
			snapshotCommand(), logCommand(), diffCommand(), restoreCommand(), undoCommand(), cpCommand(),
			pinCommand(), gcCommand(), statsCommand(), profileCommand(),
			initCommand(), verifyCommand(), recoverCommand(), storeCommand(), versionCommand(),
		},
		Action: func(c *cli.Context) error {
			if name := c.Args().First(); name != "" {
				return usagef("there is no command %q; 'cafs --help' lists them", name)
			}
			return cli.ShowAppHelp(c)
		},
	}
	walkCommands(app.Commands, func(c *cli.Command) {
		c.OnUsageError = usageError
		c.HideHelpCommand = true
	})
	return app
}

func walkCommands(all []*cli.Command, f func(*cli.Command)) {
	for _, c := range all {
		f(c)
		walkCommands(c.Subcommands, f)
	}
}

func usageError(c *cli.Context, err error, isSubcommand bool) error {
	name := "cafs"
	if c.Command != nil && c.Command.HelpName != "" {
		name = c.Command.HelpName
	}
	return usagef("%v; see '%s --help'", err, name)
}

// example formats the examples of a help text.
func example(lines ...string) string {
	return "Example:\n  " + strings.Join(lines, "\n  ")
}

// version is set by the linker in releases.
var version = ""

// versionString is the program's version: the linker's, or what the Go tool
// recorded.
func versionString() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	if v == "" || v == "(devel)" {
		v = "devel"
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				v = fmt.Sprintf("devel-%s", s.Value[:12])
			}
		}
	}
	return v
}
