package main

import (
	"math"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"cafs/linksys"
)

// TestRanges: what the two ways of naming bytes mean, as half-open ranges.
func TestRanges(t *testing.T) {
	const end = math.MaxInt64
	for text, want := range map[string]linksys.ByteRange{
		"":      {From: 0, To: end},
		"0-0":   {From: 0, To: 1},
		"5-9":   {From: 5, To: 10},
		"5-":    {From: 5, To: end},
		"-7":    {From: -7, To: end},
		"-0":    {From: end, To: end}, // the last 0 bytes
		"0-99":  {From: 0, To: 100},
		"10-10": {From: 10, To: 11},
	} {
		if got, err := parseSpan(text); err != nil || got != want {
			t.Errorf("--range %q: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"-", "5", "9-5", "a-b", "1--2", "+1-2", "0x1-2", "9999999999999999999-", "5-9 "} {
		if _, err := parseSpan(text); exitCode(err) != exitUsage {
			t.Errorf("--range %q: %v, want a usage error", text, err)
		}
	}
	for text, want := range map[string]linksys.ByteRange{ // those of the specification first
		"0:1023":    {From: 0, To: 1024},
		"0:*":       {From: 0, To: end},
		"-1024:*":   {From: -1024, To: end},
		"499:-1000": {From: 499, To: -999},
		"-10:-1":    {From: -10, To: end},
		"3:3":       {From: 3, To: 4},
	} {
		if got, err := parseEntityBytes(text); err != nil || got != want {
			t.Errorf("--entity-bytes %q: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", ":", "5", "9:5", "-1:-5", "*:*", "a:b", ":5", "5:", "1:2:3", "9999999999999999999:*"} {
		if _, err := parseEntityBytes(text); exitCode(err) != exitUsage {
			t.Errorf("--entity-bytes %q: %v, want a usage error", text, err)
		}
	}
}

func TestExportFlags(t *testing.T) {
	var got exportOptions
	parse := func(line string) error {
		app := newApp()
		find(find(app.Commands, "dag").Subcommands, "export").Action = func(c *cli.Context) (err error) {
			got, err = exportFlags(c)
			return err
		}
		args, err := arrange(app, strings.Fields("cafs dag export -R r "+line))
		if err == nil {
			err = app.Run(args)
		}
		return err
	}
	for _, line := range []string{
		"", "a b", "a --car-version 3", "a --scope some", "a --scope all --entity-bytes 0:1", "a --entity-bytes 1",
		"a --selector {} --scope all", "a --selector {} --entity-bytes 0:1", "a --nosuch",
	} {
		if err := parse(line); exitCode(err) != exitUsage {
			t.Errorf("dag export %s: %v, want a usage error", line, err)
		}
	}
	if err := parse("a --entity-bytes 0:9 -o f --car-version 2"); err != nil || got.sel.Scope != linksys.ScopeEntity ||
		*got.sel.Bytes != (linksys.ByteRange{From: 0, To: 10}) || got.output != "f" || got.version != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	if err := parse("a"); err != nil || got.sel.Scope != linksys.ScopeAll || got.version != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}
