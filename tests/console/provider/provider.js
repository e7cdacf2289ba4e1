// An OpenID provider with its own pages for the sign-in. node provider.js PORT CERTIFICATE KEY REDIRECT_URI...
// Clients: `console` (public), `secretive` (with the secret `s3cr:t`) and `other`, which no API server trusts.
import fs from 'node:fs';
import https from 'node:https';
import Provider from 'oidc-provider';

const [port, certificate, key, ...redirects] = process.argv.slice(2);
const issuer = `https://localhost:${port}`;
const client = (id, more = {}) => ({
  client_id: id, redirect_uris: redirects, token_endpoint_auth_method: 'none', grant_types: ['authorization_code'], response_types: ['code'], ...more,
});
const provider = new Provider(issuer, {
  clients: [
    client('console'), client('other'),
    client('secretive', { client_secret: 's3cr:t', token_endpoint_auth_method: 'client_secret_basic' }),
  ],
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  cookies: { keys: ['of a test'] },
  pkce: { required: () => true },
  ttl: { IdToken: 3600, Interaction: 600, Session: 600, Grant: 600, AccessToken: 600 },
});
provider.proxy = true;
const files = { cert: fs.readFileSync(certificate), key: fs.readFileSync(key) };
https.createServer(files, provider.callback()).listen(Number(port), '127.0.0.1', () => console.log('listening'));
