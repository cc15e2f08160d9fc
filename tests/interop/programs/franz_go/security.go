package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// security translates librdkafka's names of settings into options; sasl.oauthbearer.token is a token itself.
func security(settings map[string]string) ([]kgo.Opt, error) {
	var options []kgo.Opt
	if protocol := settings["security.protocol"]; protocol == "SSL" || protocol == "SASL_SSL" {
		config, err := tlsConfig(settings)
		if err != nil {
			return nil, err
		}
		options = append(options, kgo.DialTLSConfig(config))
	}
	if name := settings["sasl.mechanism"]; name != "" {
		mechanism, err := mechanism(name, settings)
		if err != nil {
			return nil, err
		}
		options = append(options, kgo.SASL(mechanism))
	}
	return options, nil
}

func tlsConfig(settings map[string]string) (*tls.Config, error) {
	authority, err := os.ReadFile(settings["ssl.ca.location"])
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(authority)
	if certificate := settings["ssl.certificate.location"]; certificate != "" {
		pair, err := tls.LoadX509KeyPair(certificate, settings["ssl.key.location"])
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func mechanism(name string, settings map[string]string) (sasl.Mechanism, error) {
	user, password := settings["sasl.username"], settings["sasl.password"]
	switch name {
	case "PLAIN":
		return plain.Auth{User: user, Pass: password}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return scram.Auth{User: user, Pass: password}.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return scram.Auth{User: user, Pass: password}.AsSha512Mechanism(), nil
	case "OAUTHBEARER":
		return oauth.Oauth(func(context.Context) (oauth.Auth, error) {
			return oauth.Auth{Token: settings["sasl.oauthbearer.token"]}, nil
		}), nil
	}
	return nil, fmt.Errorf("no mechanism %s", name)
}
