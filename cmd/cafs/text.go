package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
	"golang.org/x/term"
)

// escape makes text safe to print: control characters, invisible and
// direction-changing ones and bytes that are no UTF-8 become \n, \x1b, \u202e …
// A backslash becomes two when anything else was escaped in the same text.
func escape(s string) string {
	if strings.IndexFunc(s, unsafe) < 0 && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '\\' || unsafe(r):
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		default:
			b.WriteRune(r)
		}
		i += n
	}
	return b.String()
}

func unsafe(r rune) bool { return r != ' ' && !unicode.IsPrint(r) }

// printJSON writes one value as a line.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// size writes bytes for people.
func size(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

// isTTY tells whether f is a terminal: only those get progress bars.
func isTTY(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// notef tells the user something that is no result.
func notef(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "cafs: %s\n", escape(fmt.Sprintf(format, args...)))
}
