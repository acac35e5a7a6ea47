// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// redacted replaces a value that may be a secret.
const redacted = "<redacted>"

var (
	// secretWords match names of fields, annotations, flags and headers whose value may be a secret.
	secretWords = regexp.MustCompile(`(?i)passw|passphrase|secret|token|credential|authorization|(api|access|private|signing)[-_.]?key`)
	// placeWords match names of fields and flags whose value is the place of a secret.
	placeWords = regexp.MustCompile(`(?i)(name|namespace|file|path|dir|directory|mode|policy)s?$`)
	// secretFlags also match names of flags and variables in arguments.
	secretFlags = regexp.MustCompile(`(?i)(^|[-_.])(key|pass|pwd|auth)s?$`)
	// codeFlags match flags of interpreters whose value is a program: sh -c, bash -ec, perl -e.
	codeFlags = regexp.MustCompile(`^-[a-zA-Z]{0,3}[ce]$`)
	// userInfo matches user and password in a URL.
	userInfo = regexp.MustCompile(`://[^/\s@"']+@`)
)

// shownDomains are the domains of annotations whose values are the network's or Kubernetes' own. Other programs may keep secrets in theirs.
var shownDomains = []string{"kubeovn.io", "kubernetes.io", "k8s.io", "cncf.io"}

// redact replaces values that may be secrets: of environment variables, fields, flags and headers with such names, scripts in arguments, and annotations of other programs.
// It also removes copies of the object in its own metadata.
func redact(o *unstructured.Unstructured) {
	unstructured.RemoveNestedField(o.Object, "metadata", "managedFields")
	redactMap(o.Object)
}

func mayBeSecret(name string) bool {
	return secretWords.MatchString(name) && !placeWords.MatchString(name)
}

func redactMap(fields map[string]any) {
	if name, is := fields["name"].(string); is && mayBeSecret(name) {
		if _, has := fields["value"]; has { // a header of a probe
			fields["value"] = redacted
		}
	}
	next := false
	for _, name := range []string{"command", "args"} { // Kubernetes appends the second to the first
		if arguments, is := fields[name].([]any); is {
			next = redactArguments(arguments, next)
		}
	}
	for name, value := range fields {
		switch value := value.(type) {
		case string:
			if fields[name] = redactText(value); value != "" && mayBeSecret(name) {
				fields[name] = redacted
			}
		case map[string]any:
			if name == "annotations" {
				redactAnnotations(value)
			}
			redactMap(value)
		case []any:
			if name == "env" {
				redactEnvironment(value)
			}
			redactList(value)
		}
	}
}

func redactList(values []any) {
	for i, value := range values {
		switch value := value.(type) {
		case string:
			values[i] = redactText(value)
		case map[string]any:
			redactMap(value)
		case []any:
			redactList(value)
		}
	}
}

func redactText(text string) string { return userInfo.ReplaceAllString(text, "://"+redacted+"@") }

func redactEnvironment(variables []any) {
	for _, v := range variables {
		if fields, is := v.(map[string]any); is && fields["value"] != nil {
			fields["value"] = redacted
		}
	}
}

// redactArguments replaces values of flags and variables with names of secrets (--password=VALUE, --password VALUE, PASSWORD=VALUE), and programs: the value of sh -c, and
// each argument that is more than one word. next: the first argument is such a value. It reports whether the argument after the last one is.
func redactArguments(arguments []any, next bool) bool {
	for i, a := range arguments {
		text, is := a.(string)
		switch {
		case !is:
		case next && !strings.HasPrefix(text, "--"), strings.ContainsAny(text, " \t\n;|&`{}\"'"):
			arguments[i], next = redacted, false
		case codeFlags.MatchString(text):
			next = true
		default:
			var has bool
			arguments[i], has = redactAssignment(text)
			next = !has && strings.HasPrefix(text, "-") && mayBeSecretArgument(text)
		}
	}
	return next
}

// redactAssignment replaces the value after the first name of a secret, also in --set=db.password=VALUE. It reports whether the argument has a value.
func redactAssignment(text string) (string, bool) {
	for at := 0; ; {
		n := strings.IndexByte(text[at:], '=')
		if n < 0 {
			return text, at > 0
		}
		if name := text[at : at+n]; mayBeSecretArgument(name) {
			return text[:at+n+1] + redacted, true
		}
		at += n + 1
	}
}

func mayBeSecretArgument(name string) bool { return mayBeSecret(name) || secretFlags.MatchString(name) }

func redactAnnotations(annotations map[string]any) {
	delete(annotations, corev1.LastAppliedConfigAnnotation)
	for key := range annotations {
		domain, _, _ := strings.Cut(key, "/")
		if !shown(domain) || mayBeSecret(key) {
			annotations[key] = redacted
		}
	}
}

func shown(domain string) bool {
	for _, d := range shownDomains {
		if domain == d || strings.HasSuffix(domain, "."+d) {
			return true
		}
	}
	return false
}
